//! Recognises clients that speak something else, by the first bytes of a connection, so that the log names the cause.

use thiserror::Error;

/// What else is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Foreign {
    #[error(
        "it began a TLS handshake, but this listener is plain text; set the client's security.protocol to PLAINTEXT \
         (kaas has no TLS yet)"
    )]
    Tls,
    #[error("it speaks HTTP; this is the Kafka port, metrics and health are on the port of --admin-listen")]
    Http,
    #[error("it speaks SSH; this is the Kafka port")]
    Ssh,
}

/// The first byte of a TLS record that carries a handshake, and the major version behind it.
const TLS_HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// Asked only about a prefix that would be the length of a much too long request.
pub(crate) fn recognise(prefix: [u8; 4]) -> Option<Foreign> {
    if prefix[..2] == TLS_HANDSHAKE {
        return Some(Foreign::Tls);
    }
    match &prefix {
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"DELE" | b"OPTI" | b"PATC" | b"CONN" | b"TRAC" | b"PRI " => {
            Some(Foreign::Http)
        }
        b"SSH-" => Some(Foreign::Ssh),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_told_apart() {
        assert_eq!(recognise([0x16, 3, 1, 2]), Some(Foreign::Tls));
        assert_eq!(recognise(*b"GET "), Some(Foreign::Http));
        assert_eq!(recognise(*b"PRI "), Some(Foreign::Http));
        assert_eq!(recognise(*b"SSH-"), Some(Foreign::Ssh));
        assert_eq!(recognise([0x7f, 0xff, 0xff, 0xff]), None);
    }
}
