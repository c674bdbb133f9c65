//! A tenant damages the ledger of its own slice. From then on the slice refuses memory and launches, the manager
//! reports the damage, and the slice can be removed. Other slices go on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use aliquot_abi::region::{Header, LEDGER_FILE, LEDGER_FILE_BYTES, Ledger};
use aliquot_harness::MIB;

use super::{Fault, Injected};
use crate::chance::Chance;
use crate::roster::Excuse;
use crate::verdict::Stuck;
use crate::world::{TARGET, World};

/// A way to damage a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Damage {
    Truncated,
    Zeroed,
    RandomWords,
    Header,
    Extended,
}

impl Damage {
    pub(super) const ALL: [Damage; 5] =
        [Damage::Truncated, Damage::Zeroed, Damage::RandomWords, Damage::Header, Damage::Extended];

    fn spoil(self, ledger: &File, chance: &mut Chance) -> io::Result<()> {
        match self {
            Damage::Truncated => ledger.set_len([0, 4096, LEDGER_FILE_BYTES as u64 / 2][chance.below(3)]),
            Damage::Zeroed => ledger.write_all_at(&vec![0; size_of::<Ledger>()], 0),
            Damage::RandomWords => {
                let words = (size_of::<Ledger>() - size_of::<Header>()) / 8;
                (0..200).try_for_each(|number| {
                    // Half of the words go to the start of the file, which holds the accounts and the owners.
                    let among = if number % 2 == 0 { words.min(2048) } else { words };
                    let at = size_of::<Header>() + chance.below(among) * 8;
                    ledger.write_all_at(&chance.number().to_ne_bytes(), at as u64)
                })
            }
            Damage::Header => {
                let bytes: Vec<u8> = (0..size_of::<Header>()).map(|_| chance.number() as u8).collect();
                ledger.write_all_at(&bytes, 0)
            }
            Damage::Extended => ledger.set_len(1 << 36),
        }
    }

    /// Whether the manager must report the damage and the slice must refuse everything. Not so for random words, which
    /// can look like a valid ledger, and for an extended file, which the manager cuts back to its size.
    fn is_certain(self) -> bool {
        matches!(self, Damage::Truncated | Damage::Zeroed | Damage::Header)
    }
}

impl Fault for Damage {
    fn name(&self) -> &'static str {
        match self {
            Damage::Truncated => "ledger truncated by its tenant",
            Damage::Zeroed => "ledger zeroed by its tenant",
            Damage::RandomWords => "random words in the ledger",
            Damage::Header => "ledger's header overwritten",
            Damage::Extended => "ledger extended by its tenant",
        }
    }

    fn spares_the_manager(&self) -> bool {
        true
    }

    fn excuses(&self) -> Vec<(&'static str, Excuse)> {
        // A tenant that lowers its own account can take that much more memory, until the manager reads the devices'
        // figures.
        let limits = matches!(self, Damage::Zeroed | Damage::RandomWords);
        vec![(TARGET, Excuse { limits, ..Excuse::ALL })]
    }

    fn inject(&mut self, world: &mut World, chance: &mut Chance) -> Result<Injected, Stuck> {
        let path = world.places[TARGET].region.join(LEDGER_FILE);
        let spoilt = OpenOptions::new().write(true).open(&path).and_then(|ledger| self.spoil(&ledger, chance));
        spoilt.map_err(|error| Stuck(format!("{} cannot be spoilt: {error}", path.display())))?;
        world.go_on(|slice| slice != TARGET)?;
        Ok(Injected::Done)
    }

    fn heal(&mut self, world: &mut World, _: &mut Chance) -> Result<(), Stuck> {
        if self.is_certain() {
            self.judge(world)?;
        }
        world.replace_target()
    }
}

impl Damage {
    fn judge(self, world: &mut World) -> Result<(), Stuck> {
        let told = world.until("a damaged region is told of", |world| {
            Ok(Some(world.problem_of(TARGET)?).filter(|problem| !problem.is_empty()))
        });
        match told {
            Err(Stuck(what)) => world.verdict.wrong(what),
            Ok(problem) => {
                let said = world.aliquot(&["describe", TARGET])?.stdout;
                // The command may wrap the text over several lines.
                let first: String = problem.chars().take(20).collect();
                if !said.contains(&first) {
                    world.verdict.wrong(format!("`aliquot describe` does not tell {problem:?}: {said}"));
                }
            }
        }
        world.go_on(|slice| slice != TARGET)?;
        let outcome = world.run_in(TARGET, "asks_both", &[&MIB.to_string()])?;
        for granted in ["memory 0\n", "launch 0\n"] {
            if outcome.stdout.contains(granted) {
                world.verdict.wrong(format!(
                    "a process that starts in a damaged slice is granted what it asks for: {outcome:?}"
                ));
            }
        }
        Ok(())
    }
}
