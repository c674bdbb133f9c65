//! The names by which the outside knows claims, nodes and commands.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

macro_rules! name {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// The UID of a claim. It is never used again for another one.
    ClaimUid
);
name!(
    /// The name of a node. It stays the same over restarts of the node.
    NodeName
);

/// Numbers commands: a later command has a greater generation, across restarts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation {
    /// The term of the engine that gave the command. Each start of an engine begins a new term.
    pub term: u64,
    /// The command's number in that term.
    pub number: u64,
}

impl Display for Generation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.number)
    }
}
