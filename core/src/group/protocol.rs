//! Which of the members' embedded protocols a generation uses.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::ids::ProtocolName;

/// One embedded protocol that a member offers, with what it wants the leader to know: for consumers, an assignor and
/// a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub name: ProtocolName,
    pub metadata: Bytes,
}

/// Each member votes for the first of its protocols that all members offer; most votes win.
///
/// A draw is decided in the order of preference of the first member, so the outcome never depends on chance.
/// `None` when no protocol is offered by all, or there is nobody.
#[must_use]
pub fn select<'a>(offers: impl Iterator<Item = &'a [Protocol]> + Clone) -> Option<ProtocolName> {
    let mut offered_by: BTreeMap<&ProtocolName, usize> = BTreeMap::new();
    let mut members = 0;
    for offer in offers.clone() {
        members += 1;
        for (position, protocol) in offer.iter().enumerate() {
            // A name that a member lists twice counts once.
            if !offer[..position].iter().any(|earlier| earlier.name == protocol.name) {
                *offered_by.entry(&protocol.name).or_default() += 1;
            }
        }
    }
    let by_all = |name: &ProtocolName| offered_by.get(name) == Some(&members);

    let mut votes: BTreeMap<&ProtocolName, usize> = BTreeMap::new();
    for offer in offers.clone() {
        let vote = offer.iter().find(|protocol| by_all(&protocol.name))?;
        *votes.entry(&vote.name).or_default() += 1;
    }
    let most = votes.values().max()?;
    let mut preferences = offers.into_iter().next()?.iter().map(|protocol| &protocol.name);
    preferences.find(|name| votes.get(name) == Some(most)).cloned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    fn offer(names: &[&str]) -> Vec<Protocol> {
        names.iter().map(|&name| Protocol { name: name.into(), metadata: Bytes::new() }).collect()
    }

    fn selected(offers: &[&[&str]]) -> Option<String> {
        let offers: Vec<_> = offers.iter().map(|names| offer(names)).collect();
        select(offers.iter().map(Vec::as_slice)).map(|name| name.as_str().to_owned())
    }

    #[test]
    fn votes_count_only_for_what_all_members_offer() {
        for (offers, expected) in [
            (&[] as &[&[&str]], None),
            (&[&["range"]], Some("range")),
            (&[&["range", "roundrobin"], &["roundrobin"]], Some("roundrobin")),
            // Two votes for roundrobin, one for range.
            (&[&["range", "roundrobin"], &["roundrobin", "range"], &["roundrobin", "range"]], Some("roundrobin")),
            // sticky is preferred by two, but one does not have it.
            (&[&["sticky", "range"], &["sticky", "range"], &["range"]], Some("range")),
            (&[&["range"], &["sticky"]], None),
            // A draw: the first member decides.
            (&[&["b", "a"], &["a", "b"]], Some("b")),
            (&[&["a", "a", "b"], &["b"]], Some("b")),
        ] {
            assert_eq!(selected(offers).as_deref(), expected, "{offers:?}");
        }
    }

    #[test]
    fn a_draw_goes_to_a_protocol_that_got_votes() {
        // The first member's vote is c; a and b tie with two votes each, the first member prefers a of those.
        let offers: &[&[&str]] =
            &[&["c", "a", "b"], &["a", "b", "c"], &["a", "b", "c"], &["b", "a", "c"], &["b", "a", "c"]];
        assert_eq!(selected(offers).as_deref(), Some("a"));
    }
}
