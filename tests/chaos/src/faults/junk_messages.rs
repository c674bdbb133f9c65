//! Invalid messages on the sockets with which processes attach to the manager.

use std::os::fd::OwnedFd;

use aliquot_abi::region::{ATTACH_SOCKET, AttachMessage, SLOTS_MAX};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::tenant::Recipe;
use crate::verdict::Stuck;
use crate::world::{STANDING, TARGET, World};

#[derive(Default)]
pub(super) struct JunkMessages {
    open: Vec<OwnedFd>,
}

impl JunkMessages {
    fn send(&mut self, world: &World, chance: &mut Chance) {
        let standing = &STANDING[chance.below(STANDING.len())];
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) else { return };
        let address = SocketAddrUnix::new(world.places[standing.name].region.join(ATTACH_SOCKET));
        if address.is_ok_and(|address| connect(&socket, &address).is_ok()) {
            for _ in 0..=chance.below(3) {
                // Fails if the manager has closed the connection by then.
                let _ = send(&socket, &message(chance), SendFlags::NOSIGNAL);
            }
            self.open.push(socket);
        }
    }
}

/// Random bytes of any length below 4096, or a nearly valid message.
fn message(chance: &mut Chance) -> Vec<u8> {
    if chance.once_in(2) {
        return (0..chance.below(4096)).map(|_| chance.number() as u8).collect();
    }
    let word = |chance: &mut Chance| if chance.once_in(2) { chance.number() as u32 } else { chance.below(600) as u32 };
    let kind = word(chance) % 5;
    // A ring with a free slot and its generation is valid. It would attach this process, which lives on.
    let slot_min = if kind == AttachMessage::RING { SLOTS_MAX as u32 } else { 0 };
    let message = AttachMessage {
        magic: AttachMessage::MAGIC,
        kind,
        slot: word(chance).max(slot_min),
        generation: word(chance),
        device: word(chance),
        reserved: 0,
    };
    message.to_bytes().into()
}

impl Fault for JunkMessages {
    fn name(&self) -> &'static str {
        "rubbish on the attach sockets"
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        const MESSAGES: usize = 600;
        for _ in 0..MESSAGES {
            self.send(world, chance);
        }
        // A normal process must still be attached.
        world.make_room(TARGET, 1)?;
        world.start_tenant(TARGET, &Recipe::mixed());
        let pid = world.tenants.last().map(crate::tenant::Tenant::pid);
        world.until("the manager hears of a process beside much rubbish", |world| {
            let usage = world.client()?.usage(TARGET).map_err(|status| Stuck(status.message().to_owned()))?;
            Ok(usage.processes.iter().any(|process| Some(process.pid) == pid).then_some(()))
        })?;
        world.all_go_on()?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        self.open.clear();
        world.all_go_on()
    }
}
