//! Names of adapters in settings: `device[:port[:gid index]]`.

use std::fmt;
use std::str::FromStr;

/// An adapter, a port of it, or an address of that, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDevice {
    /// The device, as `ibv_devices` calls it.
    pub device: String,
    /// The port; all that can be used if it is not named.
    pub port: Option<u8>,
    /// The place of the address in the port's table; chosen if it is not named.
    pub gid_index: Option<u8>,
}

/// It is not such a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no card: {why}; a name is `device[:port[:gid index]]`, such as `mlx5_0` or `mlx5_0:1:3`")]
pub struct BadName {
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for WantedDevice {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = |why| BadName { text: text.to_owned(), why };
        let mut parts = text.split(':');
        let device = parts.next().unwrap_or_default();
        if device.is_empty() {
            return Err(bad("its device is empty"));
        }
        if device.contains(|letter: char| letter == '/' || letter.is_whitespace() || letter.is_control()) {
            return Err(bad("no device is called so"));
        }
        let port =
            parts.next().map(str::parse::<u8>).transpose().map_err(|_| bad("its port is no number up to 255"))?;
        if port == Some(0) {
            return Err(bad("ports are counted from 1"));
        }
        let gid_index =
            parts.next().map(str::parse::<u8>).transpose().map_err(|_| bad("its gid index is no number up to 255"))?;
        match parts.next() {
            None => Ok(Self { device: device.to_owned(), port, gid_index }),
            Some(_) => Err(bad("it has more than three parts")),
        }
    }
}

impl fmt::Display for WantedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if let Some(index) = self.gid_index {
            write!(f, ":{index}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_says_how_much_is_chosen_by_hand() {
        let read = |text: &str| text.parse::<WantedDevice>().expect("a name");
        assert_eq!(read("mlx5_0"), WantedDevice { device: "mlx5_0".to_owned(), port: None, gid_index: None });
        assert_eq!(read("mlx5_0:2").port, Some(2));
        assert_eq!(read("mlx5_0:2:0").gid_index, Some(0));
    }

    #[test]
    fn what_is_no_name_says_why() {
        let why = |text: &str| text.parse::<WantedDevice>().expect_err("no name").to_string();
        assert!(why("").contains("its device is empty"));
        assert!(why("rxe0:0").contains("counted from 1"));
        assert!(why("rxe0:one").contains("its port is no number"));
        assert!(why("rxe0:1:256").contains("its gid index is no number"));
        assert!(why("rxe0:1:2:3").contains("more than three parts"));
        assert!(why("../rxe0").contains("no device is called so"));
        assert!(why("rxe0:1:2:3").contains("`rxe0:1:2:3`"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_that_is_written_back_or_an_error(text in ".{0,20}") {
            if let Ok(wanted) = text.parse::<WantedDevice>() {
                prop_assert_eq!(wanted.to_string().parse::<WantedDevice>(), Ok(wanted));
            }
        }
    }
}
