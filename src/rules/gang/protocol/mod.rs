//! The messages between the agents, their encoding in frames, and the authentication of connections.

pub mod beat;
pub mod handshake;
pub mod message;
pub mod unproven;
pub mod wire;
