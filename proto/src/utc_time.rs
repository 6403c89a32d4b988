//! Points in time as people read them: RFC 3339, in UTC, to the millisecond.

use std::fmt;

use crate::types::TimestampMs;

const DAY_MS: i64 = 86_400_000;
/// Days from 0000-03-01 to 1970-01-01 in the Gregorian calendar.
const DAYS_TO_1970: i64 = 719_468;
const DAYS_OF_400_YEARS: i64 = 146_097;
/// 9999-12-31T23:59:59.999Z. RFC 3339 has no years of five digits, and none before 0000.
const LAST_MS: i64 = 253_402_300_799_999;
/// 0000-01-01T00:00:00.000Z.
const FIRST_MS: i64 = -62_167_219_200_000;

/// Shown as `2025-01-01T00:00:00.000Z`; as `… ms` when the year does not have four digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtcTime(pub TimestampMs);

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.0.0;
        if !(FIRST_MS..=LAST_MS).contains(&time) {
            return write!(f, "{time} ms");
        }
        let (year, month, day) = date(time.div_euclid(DAY_MS));
        let of_day = time.rem_euclid(DAY_MS);
        let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
        let milliseconds = of_day % 1000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01. Years begin in March here: the leap day is then the last of
/// its year, and the lengths of months follow one formula.
fn date(days_since_1970: i64) -> (i64, i64, i64) {
    let days = days_since_1970 + DAYS_TO_1970;
    let era = days.div_euclid(DAYS_OF_400_YEARS);
    let day_of_era = days.rem_euclid(DAYS_OF_400_YEARS);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) = if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    (400 * era + year_of_era + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_golden() {
        for (time, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (1_735_689_600_000, "2025-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (1_796_029_799_404, "2026-11-30T09:09:59.404Z"),
            (FIRST_MS, "0000-01-01T00:00:00.000Z"),
            (LAST_MS, "9999-12-31T23:59:59.999Z"),
            (LAST_MS + 1, "253402300800000 ms"),
            (FIRST_MS - 1, "-62167219200001 ms"),
            (i64::MAX, "9223372036854775807 ms"),
        ] {
            assert_eq!(UtcTime(TimestampMs(time)).to_string(), text);
        }
    }

    #[test]
    fn every_day_follows_the_one_before_it() {
        let length = |year: i64, month: i64| match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut expected = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(date(days), expected);
            let (year, month, day) = expected;
            expected = match (month, day) {
                _ if day < length(year, month) => (year, month, day + 1),
                (12, _) => (year + 1, 1, 1),
                _ => (year, month + 1, 1),
            };
        }
    }
}
