//! The bytes of a gang's connection, in both directions: frames cut anywhere, from a peer with and without the key.
#![no_main]

use trainit_rules::gang::message::{ToLeader, ToMember};
use trainit_rules::gang::wire::{Channel, Direction, LEADER_LIMIT};

fn take_all<T: serde::de::DeserializeOwned>(direction: Direction, bytes: &[u8]) {
    let mut channel = Channel::new([7; 32], direction);
    let mut received = Vec::new();
    for piece in bytes.chunks(13) {
        received.extend_from_slice(piece);
        loop {
            match channel.take::<T>(&mut received) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
            }
        }
        assert!(received.len() <= LEADER_LIMIT + 17);
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    take_all::<ToLeader>(Direction::ToLeader, bytes);
    take_all::<ToMember>(Direction::ToMember, bytes);
    // A peer that has the key and sends foreign JSON.
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) {
        for direction in [Direction::ToLeader, Direction::ToMember] {
            if let Ok(frame) = Channel::new([7; 32], direction).frame(&value) {
                take_all::<ToLeader>(direction, &frame);
                take_all::<ToMember>(direction, &frame);
            }
        }
    }
});
