//! What happened last, for whoever has to explain a failed seed.

use std::collections::VecDeque;
use std::fmt;

use super::super::MonotonicTime;

/// Older lines are forgotten.
const MAX_LINES: usize = 3000;

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub at: MonotonicTime,
    pub what: String,
}

#[derive(Debug, Default)]
pub(super) struct Trace(VecDeque<Line>);

impl Trace {
    pub(super) fn push(&mut self, line: Line) {
        if self.0.len() == MAX_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { at, what } in &self.0 {
            writeln!(f, "{:>12.6} {what}", std::time::Duration::from_nanos(at.0).as_secs_f64())?;
        }
        Ok(())
    }
}
