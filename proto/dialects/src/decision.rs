//! A scheduler's decision about devices, as a pod carries it to its node.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// The annotation of a pod that holds its [`Decision`].
pub const DECISION: &str = "aliquot.dev/devices";

/// The annotation of a bound pod that says which command of Aliquot's scheduler has bound it.
pub const GENERATION: &str = "aliquot.dev/generation";

/// The annotation by which pods of a namespace say that they are one gang: its name.
pub const GANG: &str = "aliquot.dev/gang";

/// The annotation that says how many pods of the gang must start together.
pub const GANG_SIZE: &str = "aliquot.dev/gang-size";

/// Annotations that Aliquot's scheduler reads and writes. They do not change a container's part.
pub(crate) const OF_THE_SCHEDULER: [&str; 4] = [DECISION, GENERATION, GANG, GANG_SIZE];

/// Which parts of which devices each container of a pod gets.
///
/// As text: `main=GPU-1/300/8589934592,GPU-2/300/8589934592;other=GPU-1/1000/0`. The numbers are thousandths of the
/// device's time, and bytes of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The parts by the name of the container.
    pub containers: BTreeMap<String, Vec<DecidedPart>>,
}

/// A part of a device that the scheduler has given to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedPart {
    /// The UUID of the device.
    pub uuid: String,
    /// The guaranteed part of its time, in thousandths.
    pub core_thousandths: u32,
    /// The part of its memory in bytes.
    pub memory_bytes: u64,
}

impl Display for Decision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, (container, parts)) in self.containers.iter().enumerate() {
            write!(f, "{}{container}=", if index == 0 { "" } else { ";" })?;
            for (index, part) in parts.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                write!(f, "{comma}{}/{}/{}", part.uuid, part.core_thousandths, part.memory_bytes)?;
            }
        }
        Ok(())
    }
}

/// The text is not a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not CONTAINER=UUID/THOUSANDTHS/BYTES, with commas between devices and semicolons between containers")]
pub struct NoDecision;

impl FromStr for Decision {
    type Err = NoDecision;

    fn from_str(text: &str) -> Result<Decision, NoDecision> {
        let mut containers = BTreeMap::new();
        for of_container in text.split(';') {
            let (container, parts) = of_container.split_once('=').ok_or(NoDecision)?;
            let parts = parts.split(',').map(part).collect::<Result<Vec<DecidedPart>, NoDecision>>()?;
            if container.is_empty() || containers.insert(container.to_owned(), parts).is_some() {
                return Err(NoDecision);
            }
        }
        Ok(Decision { containers })
    }
}

fn part(text: &str) -> Result<DecidedPart, NoDecision> {
    let mut words = text.split('/');
    let (uuid, core, memory, None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(NoDecision);
    };
    Ok(DecidedPart {
        uuid: uuid.filter(|uuid| !uuid.is_empty()).ok_or(NoDecision)?.to_owned(),
        core_thousandths: core.and_then(|core| core.parse().ok()).ok_or(NoDecision)?,
        memory_bytes: memory.and_then(|memory| memory.parse().ok()).ok_or(NoDecision)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_as_it_was_written() {
        let part = |uuid: &str, core_thousandths, memory_bytes| DecidedPart {
            uuid: uuid.to_owned(),
            core_thousandths,
            memory_bytes,
        };
        let decision = Decision {
            containers: BTreeMap::from([
                ("main".to_owned(), vec![part("GPU-1", 300, 8 << 30), part("GPU-2", 300, 8 << 30)]),
                ("other".to_owned(), vec![part("GPU-1", 1000, 0)]),
            ]),
        };
        let text = "main=GPU-1/300/8589934592,GPU-2/300/8589934592;other=GPU-1/1000/0";
        assert_eq!(decision.to_string(), text);
        assert_eq!(text.parse(), Ok(decision));
    }

    #[test]
    fn other_texts_are_no_decisions() {
        for text in [
            "",
            "main",
            "main=",
            "=GPU-1/1/1",
            "main=GPU-1/1",
            "main=GPU-1/1/1/1",
            "main=/1/1",
            "main=GPU-1/-1/1",
            "main=GPU-1/1/x",
            "main=GPU-1/1/1;main=GPU-2/1/1",
            "main=GPU-1/1/1;",
        ] {
            assert_eq!(text.parse::<Decision>(), Err(NoDecision), "{text:?}");
        }
    }
}
