//! The messages between the agents, their encoding in frames, and the authentication of connections.

pub mod beat;
pub mod handshake;
pub mod message;
mod offer;
pub mod settings;
pub mod unproven;
pub mod wire;
