//! Taints of nodes, and what tolerates them.

use std::fmt::{self, Display, Formatter};

/// Keeps claims away from a node, or makes the node less preferred.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Taint {
    /// The taint's name.
    pub key: String,
    /// Its value, possibly empty.
    pub value: String,
    /// What the taint does to claims that do not tolerate it.
    pub effect: TaintEffect,
}

impl Taint {
    /// Whether claims that do not tolerate it are never placed there.
    #[must_use]
    pub fn keeps_away(&self) -> bool {
        self.effect != TaintEffect::PreferNoSchedule
    }
}

/// What a taint does to claims that do not tolerate it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TaintEffect {
    /// They are not placed on the node.
    #[default]
    NoSchedule,
    /// They are not placed on the node, and those that run there must go. The observer of the node ends them; the core
    /// does not.
    NoExecute,
    /// They are placed there only if no better node has room.
    PreferNoSchedule,
}

/// Matches the taints that do not matter to a claim. A field that is `None` matches anything.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Toleration {
    /// The taint's name.
    pub key: Option<String>,
    /// Its value.
    pub value: Option<String>,
    /// What the taint does to claims that do not tolerate it.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// A toleration of exactly this taint.
    #[must_use]
    pub fn of(taint: &Taint) -> Self {
        Self { key: Some(taint.key.clone()), value: Some(taint.value.clone()), effect: Some(taint.effect) }
    }

    /// Whether it tolerates a taint.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

impl Display for TaintEffect {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSchedule => "NoSchedule",
            Self::NoExecute => "NoExecute",
            Self::PreferNoSchedule => "PreferNoSchedule",
        })
    }
}

/// Written as `kubectl` takes it: `KEY=VALUE:EFFECT`, or `KEY:EFFECT` without a value.
impl Display for Taint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Toleration::of(self).fmt(f)
    }
}

/// Written like a taint, without the effect if any effect is tolerated. A key or a value that may be anything is `*`.
impl Display for Toleration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.key.as_deref().unwrap_or("*"))?;
        match self.value.as_deref() {
            Some("") => {}
            value => write!(f, "={}", value.unwrap_or("*"))?,
        }
        match self.effect {
            Some(effect) => write!(f, ":{effect}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_says_what_it_matches_and_leaves_open_the_rest() {
        let taint = |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
        let taints = [
            taint("team", "x", TaintEffect::NoSchedule),
            taint("team", "x", TaintEffect::NoExecute),
            taint("team", "", TaintEffect::NoSchedule),
            taint("spot", "x", TaintEffect::NoExecute),
        ];
        let (team, x) = (Some("team".to_owned()), Some("x".to_owned()));
        let execute = Some(TaintEffect::NoExecute);
        let rows = [
            (Toleration::default(), [true, true, true, true]),
            (Toleration { key: team.clone(), ..Toleration::default() }, [true, true, true, false]),
            (Toleration { key: team.clone(), value: x, effect: None }, [true, true, false, false]),
            (Toleration { key: team.clone(), value: Some(String::new()), effect: None }, [false, false, true, false]),
            (Toleration { key: team, value: None, effect: execute }, [false, true, false, false]),
            (Toleration { effect: execute, ..Toleration::default() }, [false, true, false, true]),
            (Toleration::of(&taints[1]), [false, true, false, false]),
        ];
        for (toleration, expected) in rows {
            assert_eq!(taints.each_ref().map(|taint| toleration.tolerates(taint)), expected, "{toleration:?}");
        }
    }

    #[test]
    fn taints_are_written_as_on_a_command_line() {
        let mut taint = Taint { key: "team".into(), value: "x".into(), effect: TaintEffect::NoExecute };
        assert_eq!(taint.to_string(), "team=x:NoExecute");
        taint.value.clear();
        assert_eq!(taint.to_string(), "team:NoExecute");
        assert_eq!(Toleration { effect: None, ..Toleration::of(&taint) }.to_string(), "team");
        assert_eq!(Toleration::default().to_string(), "*=*");
    }
}
