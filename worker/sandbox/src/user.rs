//! The user as which programs run.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The user as which programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// The user of our container images, which owns no files.
    pub const NOBODY: Self = Self { uid: 65532, gid: 65532 };
}

/// `1000`, or `1000:1000` with the group.
impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not the number of a user or group"));
        Ok(Self { uid: number(uid)?, gid: number(gid)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_and_may_name_its_group() {
        assert_eq!("1000".parse(), Ok(User { uid: 1000, gid: 1000 }));
        assert_eq!("1000:7".parse(), Ok(User { uid: 1000, gid: 7 }));
        assert_eq!("alice".parse::<User>(), Err("\"alice\" is not the number of a user or group".to_owned()));
    }
}
