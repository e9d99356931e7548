//! What agents say to each other, which connections are proven and how, and how messages travel over them.

pub mod handshake;
pub mod message;
pub mod unproven;
pub mod wire;
