//! Messages on a region's attach socket.

use super::{DEVICES_MAX, SLOTS_MAX};

/// A message on the attach socket. A process sends one when it has taken a slot, when it waits at a gate and the
/// manager may be asleep, and when it has made the driver take or give back memory that is not in its ledger. The
/// manager takes the sender's identity from the socket, not from the message.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachMessage {
    /// Always [`AttachMessage::MAGIC`], so that a stray message is noticed.
    pub magic: u32,
    /// [`AttachMessage::ATTACH`], [`AttachMessage::RING`] or [`AttachMessage::LOOK`].
    pub kind: u32,
    /// The index of the sender's slot.
    pub slot: u32,
    /// The generation with which it took the slot.
    pub generation: u32,
    /// The device at whose gate the sender waits, or whose memory is to be looked at; 0 in an attach message.
    pub device: u32,
    /// Reserved, zero.
    pub reserved: u32,
}

impl AttachMessage {
    /// `ALQ1`, read as a little-endian number.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"ALQ1");
    /// The sender has taken a slot.
    pub const ATTACH: u32 = 1;
    /// The sender waits at a gate.
    pub const RING: u32 = 2;
    /// The sender's use of memory has changed beyond its ledger, for example by a context.
    pub const LOOK: u32 = 3;
    /// Size of a message in bytes.
    pub const BYTES: usize = size_of::<AttachMessage>();

    /// The message as it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let words = [self.magic, self.kind, self.slot, self.generation, self.device, self.reserved];
        let mut bytes = [0; Self::BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Parses a message; `None` if it is not one, or if `slot`, `generation` or `device` is out of range.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<AttachMessage> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let mut words = [0u32; 6];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(chunk.try_into().ok()?);
        }
        let [magic, kind, slot, generation, device, reserved] = words;
        let known = magic == Self::MAGIC && [Self::ATTACH, Self::RING, Self::LOOK].contains(&kind);
        let bounded = (slot as usize) < SLOTS_MAX && (device as usize) < DEVICES_MAX && generation <= 0xFF_FFFF;
        (known && bounded).then_some(AttachMessage { magic, kind, slot, generation, device, reserved })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn only_valid_messages_are_parsed() {
        let message = AttachMessage {
            magic: AttachMessage::MAGIC,
            kind: AttachMessage::RING,
            slot: SLOTS_MAX as u32 - 1,
            generation: 0xFF_FFFF,
            device: 15,
            reserved: 0,
        };
        assert_eq!(AttachMessage::from_bytes(&message.to_bytes()), Some(message));
        assert_eq!(AttachMessage::from_bytes(&message.to_bytes()[..23]), None);
        for wrong in [
            AttachMessage { magic: 0, ..message },
            AttachMessage { kind: 4, ..message },
            AttachMessage { slot: SLOTS_MAX as u32, ..message },
            AttachMessage { device: DEVICES_MAX as u32, ..message },
            AttachMessage { generation: 0x100_0000, ..message },
        ] {
            assert_eq!(AttachMessage::from_bytes(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }
}
