//! What may go wrong with an operation, and how likely it is. All rates are per mille of the operations.

use std::io::ErrorKind;
use std::time::Duration;

use super::random::SimRandom;

/// The errors of a volume that has trouble.
const ERRORS: [ErrorKind; 3] = [ErrorKind::Other, ErrorKind::StaleNetworkFileHandle, ErrorKind::TimedOut];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The longest that an operation takes when all is well.
    pub quick: Duration,
    pub slow_rate: u32,
    /// The longest that a slow one takes.
    pub slow: Duration,
    pub hang_rate: u32,
    /// The longest that one hangs: enough to stall a partition.
    pub hang: Duration,
    /// An error, and nothing has happened.
    pub refusal_rate: u32,
    /// An error, and it happens nevertheless: now, later, partly, or not at all.
    pub unknown_rate: u32,
    /// How much later, at most.
    pub late: Duration,
    /// A write lands in two parts, some sectors first.
    pub split_rate: u32,
    /// A write of records is on its way for longer, and the broker with it.
    pub long_write_rate: u32,
    /// The longest that one of them takes.
    pub long_write: Duration,
}

impl Faults {
    /// Nothing goes wrong; operations take their time.
    pub const NONE: Self = Self {
        quick: Duration::from_micros(400),
        slow_rate: 0,
        slow: Duration::from_millis(50),
        hang_rate: 0,
        hang: Duration::from_secs(100),
        refusal_rate: 0,
        unknown_rate: 0,
        late: Duration::from_secs(20),
        split_rate: 0,
        long_write_rate: 0,
        long_write: Duration::from_millis(400),
    };
}

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It takes effect, and its caller learns the outcome.
    Happens,
    /// The caller is told of an error, nothing happens.
    Refused(ErrorKind),
    /// The caller is told of an error; the operation goes on by itself.
    Unknown(ErrorKind, Landing),
}

/// What becomes of an operation whose caller does not wait for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    Lands,
    Later(Duration),
    /// Some sectors of it, if it is a write.
    Torn,
    Lost,
}

impl Faults {
    pub(super) fn fate(&self, mutates: bool, random: &SimRandom) -> Fate {
        if random.chance(self.refusal_rate) {
            return Fate::Refused(random.of(&ERRORS));
        }
        if random.chance(self.unknown_rate) {
            let error = random.of(&ERRORS);
            return if mutates { Fate::Unknown(error, self.landing(random)) } else { Fate::Refused(error) };
        }
        Fate::Happens
    }

    pub(super) fn landing(&self, random: &SimRandom) -> Landing {
        match random.below(4) {
            0 => Landing::Lands,
            1 => Landing::Later(random.duration(self.late)),
            2 => Landing::Torn,
            _ => Landing::Lost,
        }
    }

    /// How long one way of an operation takes.
    pub(super) fn delay(&self, random: &SimRandom) -> Duration {
        let longest = if random.chance(self.hang_rate) {
            self.hang
        } else if random.chance(self.slow_rate) {
            self.slow
        } else {
            self.quick
        };
        random.duration(longest)
    }

    /// How much longer a write of records takes.
    pub(super) fn write_delay(&self, random: &SimRandom) -> Duration {
        if random.chance(self.long_write_rate) { random.duration(self.long_write) } else { Duration::ZERO }
    }

    /// The time between the two parts of a write, if it lands in two.
    pub(super) fn split(&self, random: &SimRandom) -> Option<Duration> {
        random.chance(self.split_rate).then(|| random.duration(self.slow))
    }
}
