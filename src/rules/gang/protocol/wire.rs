//! Frames: 4 bytes of length, big endian, then JSON, then a tag of 16 bytes.
//!
//! The length counts JSON and tag. The tag is keyed BLAKE3 over the direction, the frame's number and the JSON, so a frame
//! can be neither altered, replayed, dropped nor sent back. The content is not encrypted.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::text::safe_text::printable;

/// The longest frame from a member, in bytes.
const MEMBER_LIMIT: usize = 64 << 10;
/// The longest frame from the leader, in bytes.
pub const LEADER_LIMIT: usize = 1 << 20;
/// The longest logged part of an error about a frame, in characters.
const LONGEST_QUOTE: usize = 200;
const LENGTH: usize = 4;
const TAG: usize = 16;

/// The direction of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From a member to the leader.
    ToLeader,
    /// From the leader to a member.
    ToMember,
}

/// One direction of one connection: writes or reads its frames in order.
#[derive(Debug, Clone)]
pub struct Channel {
    key: [u8; 32],
    direction: Direction,
    counter: u64,
}

/// Why a frame has no message. Only after `Content` the connection is still usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The length is out of bounds.
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// The length is too short for a tag.
    #[error("a frame is too short")]
    TooShort,
    /// The tag is wrong.
    #[error("a frame's tag is wrong: another key, or a frame was altered, lost or repeated")]
    Tag,
    /// The JSON is not a message of this version of the protocol. The frame was removed.
    #[error("a frame's content is not understood: {0}")]
    Content(String),
}

impl Channel {
    /// A new connection's direction. `key` is the session key of the handshake.
    pub fn new(key: [u8; 32], direction: Direction) -> Channel {
        Channel { key, direction, counter: 0 }
    }

    fn tag(&mut self, json: &[u8]) -> [u8; TAG] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[self.direction as u8]).update(&self.counter.to_be_bytes()).update(json);
        self.counter += 1;
        let mut tag = [0; TAG];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG]);
        tag
    }

    fn limit(&self) -> usize {
        match self.direction {
            Direction::ToLeader => MEMBER_LIMIT,
            Direction::ToMember => LEADER_LIMIT,
        }
    }

    /// Encodes a message. Errors: it is too long.
    pub fn frame(&mut self, message: &impl Serialize) -> Result<Vec<u8>, WireError> {
        let json = serde_json::to_vec(message).map_err(|error| WireError::Content(error.to_string()))?;
        let length = json.len() + TAG;
        if length > self.limit() {
            return Err(WireError::TooLong(length));
        }
        let mut bytes = Vec::with_capacity(LENGTH + length);
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(&json);
        bytes.extend(self.tag(&json));
        Ok(bytes)
    }

    /// Takes one message from the front of the received bytes; `None`: it is incomplete. A caller reads more only while it
    /// holds less than a frame, so its buffer stays below the limit. Errors: unless it is `Content`, the connection must be closed.
    pub fn take<T: DeserializeOwned>(&mut self, received: &mut Vec<u8>) -> Result<Option<T>, WireError> {
        let Some(length) = received.first_chunk::<LENGTH>().map(|bytes| u32::from_be_bytes(*bytes) as usize) else {
            return Ok(None);
        };
        if length > self.limit() {
            return Err(WireError::TooLong(length));
        }
        if length < TAG {
            return Err(WireError::TooShort);
        }
        if received.len() < LENGTH + length {
            return Ok(None);
        }
        let (json, tag) = received[LENGTH..LENGTH + length].split_at(length - TAG);
        let expected = self.tag(json);
        if !equal(&expected, tag) {
            return Err(WireError::Tag);
        }
        let message = serde_json::from_slice(json).map_err(|error| not_understood(&error));
        received.drain(..LENGTH + length);
        message.map(Some)
    }
}

/// The error of serde quotes the peer's JSON, which may be long or contain line breaks.
fn not_understood(error: &serde_json::Error) -> WireError {
    WireError::Content(printable(&error.to_string().chars().take(LONGEST_QUOTE).collect::<String>()))
}

/// Compares in a time that does not depend on the content.
pub(super) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::super::beat::Beat;
    use super::super::message::{ToLeader, ToMember};
    use super::*;
    use proptest::prelude::*;

    fn channels(direction: Direction) -> (Channel, Channel) {
        (Channel::new([7; 32], direction), Channel::new([7; 32], direction))
    }

    #[test]
    fn an_error_about_a_foreign_message_is_one_short_line() {
        let (mut from, mut to) = channels(Direction::ToLeader);
        for foreign in ["\nkind".to_owned(), "x".repeat(10_000)] {
            let mut received = from.frame(&foreign).unwrap();
            let error = to.take::<ToLeader>(&mut received).expect_err("not a message").to_string();
            assert!(!error.contains('\n') && error.len() < 300, "{error}");
            (from, to) = channels(Direction::ToLeader);
        }
    }

    #[test]
    fn the_messages_after_one_of_a_later_version_are_read() {
        let (mut from, mut to) = channels(Direction::ToMember);
        let mut received = from.frame(&serde_json::json!({"later": {"step": 3}})).unwrap();
        let known = serde_json::json!({"kept": {"step": 7, "later": true}});
        received.extend(from.frame(&known).unwrap());
        assert!(matches!(to.take::<ToMember>(&mut received), Err(WireError::Content(_))));
        assert_eq!(to.take::<ToMember>(&mut received), Ok(Some(ToMember::Kept { step: 7 })));
    }

    #[test]
    fn messages_are_decoded_in_order_however_the_bytes_are_split() {
        let (mut from, mut to) = channels(Direction::ToLeader);
        let beat = |clock| ToLeader::Beat(Beat { clock, step: Some(clock), ..Beat::default() });
        let bytes: Vec<u8> = (0..3).flat_map(|clock| from.frame(&beat(clock)).unwrap()).collect();
        let (mut received, mut found) = (Vec::new(), Vec::new());
        for byte in bytes {
            received.push(byte);
            found.extend(to.take::<ToLeader>(&mut received).unwrap());
        }
        assert_eq!(found, [beat(0), beat(1), beat(2)]);
        assert!(received.is_empty());
    }

    #[test]
    fn a_frame_that_is_repeated_altered_or_sent_back_is_refused() {
        let (mut from, mut to) = channels(Direction::ToMember);
        let frame = from.frame(&ToMember::Finish).unwrap();
        let mut twice = [frame.clone(), frame.clone()].concat();
        assert_eq!(to.take::<ToMember>(&mut twice), Ok(Some(ToMember::Finish)));
        assert_eq!(to.take::<ToMember>(&mut twice), Err(WireError::Tag));
        let mut altered = frame.clone();
        altered[5] ^= 1;
        assert_eq!(channels(Direction::ToMember).0.take::<ToMember>(&mut altered), Err(WireError::Tag));
        assert_eq!(channels(Direction::ToLeader).0.take::<ToMember>(&mut frame.clone()), Err(WireError::Tag));
        let mut other_key = Channel::new([8; 32], Direction::ToMember);
        assert_eq!(other_key.take::<ToMember>(&mut frame.clone()), Err(WireError::Tag));
    }

    #[test]
    fn a_long_frame_is_refused_before_it_is_received() {
        let mut received = (MEMBER_LIMIT as u32 + 1).to_be_bytes().to_vec();
        let refused = channels(Direction::ToLeader).0.take::<ToLeader>(&mut received);
        assert_eq!(refused, Err(WireError::TooLong(MEMBER_LIMIT + 1)));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = channels(Direction::ToLeader).0.take::<ToLeader>(&mut bytes);
        }
    }
}
