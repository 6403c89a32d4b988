//! The little that the coordinator reads of what members of the protocol type "consumer" tell each other.

use std::collections::BTreeSet;

/// The topics of a subscription, in whichever version: they come first in all of them. `None` if it can't be read.
#[must_use]
pub fn subscribed_topics(metadata: &[u8]) -> Option<BTreeSet<String>> {
    let (version, rest) = metadata.split_first_chunk()?;
    let (count, mut rest) = rest.split_first_chunk()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let mut topics = BTreeSet::new();
    // Each turn takes at least two bytes, so a false count ends at the end of the bytes.
    for _ in 0..u32::try_from(i32::from_be_bytes(*count)).ok()? {
        let (length, after) = rest.split_first_chunk()?;
        let (name, after) = after.split_at_checked(usize::try_from(i16::from_be_bytes(*length)).ok()?)?;
        topics.insert(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    #[test]
    fn topics_of_a_subscription() {
        // Version 1: two topics, no user data, no owned partitions.
        let subscription = b"\x00\x01\x00\x00\x00\x02\x00\x01b\x00\x02aa\xff\xff\xff\xff\x00\x00\x00\x00";
        assert_eq!(subscribed_topics(subscription).unwrap().into_iter().collect::<Vec<_>>(), ["aa", "b"]);
        for length in 0..13 {
            assert_eq!(subscribed_topics(&subscription[..length]), None, "{length}");
        }
        assert_eq!(subscribed_topics(b"\x00\x01\x7f\xff\xff\xff"), None);
        assert_eq!(subscribed_topics(b"\x00\x00\x00\x00\x00\x01\x00\x01\xff"), None);
        assert_eq!(subscribed_topics(b"\x00\x00\x00\x00\x00\x00").unwrap().len(), 0);
    }
}
