//! Something that happens at one certain operation: how tests go through all of them.

use std::io::ErrorKind;
use std::time::Duration;

/// What happens at the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// It fails, and nothing has happened.
    Refuse(ErrorKind),
    /// It fails, and happens so much later.
    FailAndLandLater(ErrorKind, Duration),
    /// It takes so much longer to happen.
    Delay(Duration),
    /// The process is paused when it has sent the operation.
    Pause,
    /// The process is killed.
    Crash(Moment),
    /// Everything stops.
    LosePower(Moment),
}

/// When, seen from the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    /// Some sectors of it are written.
    Torn,
    After,
}
