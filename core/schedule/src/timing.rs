//! The times of a schedule: once, at an interval, or by a cron expression in a time zone.

use std::sync::LazyLock;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::Zoned;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use run::Timestamp;

/// The shortest interval. Cron expressions have whole seconds, so they do not fire more often either.
pub const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The longest interval: longer ones are better expressed as cron.
pub const INTERVAL_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How far ahead a single time may be: beyond it, it is a mistake.
pub const ONCE_AHEAD_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The longest cron expression: more than any list of single minutes takes.
pub const CRON_BYTES_MAX: usize = 256;
/// The longest name of a time zone that is looked up.
const ZONE_BYTES_MAX: usize = 64;

/// The zones of this program, not those of the machine, so that all coordinators compute the same times.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// When a schedule fires.
#[derive(Debug, Clone)]
pub enum Timing {
    /// At the times of a cron expression.
    Cron {
        /// The expression.
        cron: Box<Cron>,
        /// The zone in which it is read.
        zone: TimeZone,
    },
    /// Once.
    Once(Timestamp),
    /// At multiples of an interval after the schedule's creation.
    Every {
        /// The interval.
        interval: Duration,
        /// When the schedule was created.
        since: Timestamp,
    },
}

/// Why times are not accepted. The messages begin with the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The expression is longer than [`CRON_BYTES_MAX`].
    #[error("is {0} bytes; the limit is {CRON_BYTES_MAX} bytes")]
    CronTooLong(usize),
    /// The expression cannot be read.
    #[error("{expression:?} is not a cron expression: {reason}. It has 5 fields, or 6 with seconds in front")]
    NoCron {
        /// As it was given.
        expression: String,
        /// Why.
        reason: String,
    },
    /// The expression can be read, and no time fits it.
    #[error("{0:?} never fires: no date in the future fits it")]
    NeverFires(String),
    /// There is no such time zone.
    #[error("{0:?} is not an IANA time zone, such as Europe/Berlin")]
    NoZone(String),
    /// The interval is too short or too long.
    #[error(
        "{0:?} is not an interval between {min} second and {max} days", min = INTERVAL_MIN.as_secs(),
        max = INTERVAL_MAX.as_secs() / 86_400
    )]
    Interval(Duration),
    /// The only time has passed.
    #[error("has passed: give a time in the future")]
    Past,
    /// The only time is too far ahead.
    #[error("is more than 10 years ahead")]
    TooFar,
}

impl Timing {
    /// The times of a cron expression after `now`, in a time zone; UTC if its name is empty.
    ///
    /// # Errors
    /// If the expression or the zone cannot be read, or if the expression never fires.
    pub fn cron(expression: &str, zone: &str, now: Timestamp) -> Result<Self, TimingError> {
        if expression.len() > CRON_BYTES_MAX {
            return Err(TimingError::CronTooLong(expression.len()));
        }
        let no_cron = |reason: String| TimingError::NoCron { expression: expression.to_owned(), reason };
        // The parser replaces names of days and months anywhere, so other letters must not come as far.
        if !expression.is_ascii() || expression.contains(char::is_control) {
            return Err(no_cron("it has characters that are not printable ASCII".to_owned()));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(expression).map_err(|error| no_cron(error.to_string()))?;
        let zone = time_zone(zone)?;
        let timing = Self::Cron { cron: Box::new(cron), zone };
        match timing.next_after(now) {
            Some(_) => Ok(timing),
            None => Err(TimingError::NeverFires(expression.to_owned())),
        }
    }

    /// A single time.
    ///
    /// # Errors
    /// If it has passed, or is too far ahead.
    pub fn once(at: Timestamp, now: Timestamp) -> Result<Self, TimingError> {
        match at {
            at if at <= now => Err(TimingError::Past),
            at if at > now.after(ONCE_AHEAD_MAX) => Err(TimingError::TooFar),
            at => Ok(Self::Once(at)),
        }
    }

    /// Multiples of an interval.
    ///
    /// # Errors
    /// If the interval is too short or too long.
    pub fn every(interval: Duration, since: Timestamp) -> Result<Self, TimingError> {
        // Times are whole milliseconds.
        let interval = Duration::from_millis(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX));
        if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
            Ok(Self::Every { interval, since })
        } else {
            Err(TimingError::Interval(interval))
        }
    }

    /// The first time after this one; `None` if there is none.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Once(at) => Some(*at).filter(|at| *at > after),
            Self::Every { interval, since } => {
                let step = u64::try_from(interval.as_millis()).ok().filter(|step| *step > 0)?;
                let passed = after.0.saturating_sub(since.0) / step;
                since.0.checked_add((passed + 1).checked_mul(step)?).map(Timestamp)
            }
            Self::Cron { cron, zone } => {
                let from = jiff::Timestamp::from_millisecond(i64::try_from(after.0).ok()?).ok()?;
                let next: Zoned = cron.find_next_occurrence(&from.to_zoned(zone.clone()), false).ok()?;
                let next = Timestamp(u64::try_from(next.timestamp().as_millisecond()).ok()?);
                // A time that does not advance would be found again and again.
                Some(next).filter(|next| *next > after)
            }
        }
    }
}

fn time_zone(name: &str) -> Result<TimeZone, TimingError> {
    let no_zone = || TimingError::NoZone(name.chars().take(ZONE_BYTES_MAX).collect());
    match name {
        "" => Ok(TimeZone::UTC),
        name if name.len() > ZONE_BYTES_MAX => Err(no_zone()),
        name => ZONES.get(name).map_err(|_| no_zone()),
    }
}
