//! Signals by name.

use std::fmt;
use std::str::FromStr;

use rustix::process::Signal as Raw;

/// A signal that a running program can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Hangup,
    Interrupt,
    Quit,
    Kill,
    User1,
    User2,
    Terminate,
    Continue,
    Stop,
}

/// The text is no name of a signal that can be sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a signal that can be sent: choose one of {names}", names = Signal::ALL.map(Signal::name).join(", "))]
pub struct UnknownSignal(String);

impl Signal {
    /// All signals that can be sent.
    pub const ALL: [Self; 9] = [
        Self::Hangup,
        Self::Interrupt,
        Self::Quit,
        Self::Kill,
        Self::User1,
        Self::User2,
        Self::Terminate,
        Self::Continue,
        Self::Stop,
    ];

    /// The name as `kill` takes it: `SIGTERM`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hangup => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Quit => "SIGQUIT",
            Self::Kill => "SIGKILL",
            Self::User1 => "SIGUSR1",
            Self::User2 => "SIGUSR2",
            Self::Terminate => "SIGTERM",
            Self::Continue => "SIGCONT",
            Self::Stop => "SIGSTOP",
        }
    }

    pub(crate) const fn raw(self) -> Raw {
        match self {
            Self::Hangup => Raw::HUP,
            Self::Interrupt => Raw::INT,
            Self::Quit => Raw::QUIT,
            Self::Kill => Raw::KILL,
            Self::User1 => Raw::USR1,
            Self::User2 => Raw::USR2,
            Self::Terminate => Raw::TERM,
            Self::Continue => Raw::CONT,
            Self::Stop => Raw::STOP,
        }
    }

    /// Its letter in an order.
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::Hangup => b'H',
            Self::Interrupt => b'I',
            Self::Quit => b'Q',
            Self::Kill => b'K',
            Self::User1 => b'1',
            Self::User2 => b'2',
            Self::Terminate => b'T',
            Self::Continue => b'C',
            Self::Stop => b'S',
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `SIGTERM`, `TERM` or `term`.
impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let found = Self::ALL.into_iter().find(|signal| signal.name().trim_start_matches("SIG") == name);
        found.ok_or_else(|| UnknownSignal(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_known_by_its_names() {
        for signal in Signal::ALL {
            assert_eq!(signal.to_string().parse(), Ok(signal));
        }
        assert_eq!("term".parse(), Ok(Signal::Terminate));
        assert_eq!("INT".parse(), Ok(Signal::Interrupt));
        let error = "SIGSEGV".parse::<Signal>().unwrap_err();
        assert!(error.to_string().contains("SIGSEGV") && error.to_string().contains("SIGHUP"), "{error}");
    }
}
