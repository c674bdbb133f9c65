//! Parses users on the command line.

use std::str::FromStr;

/// A user of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    id: u32,
}

impl FromStr for User {
    type Err = String;

    /// By name, or by number: in a container image a user need not have a name.
    fn from_str(text: &str) -> Result<User, String> {
        let named = nix::unistd::User::from_name(text).map_err(|error| format!("cannot look for the user: {error}"))?;
        match (named, text.parse()) {
            (Some(user), _) => Ok(User { id: user.uid.as_raw() }),
            (None, Ok(id)) if id != u32::MAX => Ok(User { id }),
            _ => Err("there is no such user; write a name that this machine knows, or a number".to_owned()),
        }
    }
}

/// The uids of `users`.
pub(crate) fn ids(users: &[User]) -> Vec<u32> {
    users.iter().map(|user| user.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert_eq!("root".parse(), Ok(User { id: 0 }));
        assert_eq!("4711".parse(), Ok(User { id: 4711 }));
        for none in ["", "no such user", "-1", "4294967295", "99999999999"] {
            assert!(none.parse::<User>().is_err(), "{none:?}");
        }
        assert_eq!(ids(&["4711".parse().unwrap()]), [4711]);
    }
}
