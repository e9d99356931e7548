//! Sockets: HTTP, TCP and the status socket.

pub mod borrowed_port;
pub mod free_port;
pub mod gang;
pub mod http;
pub mod http_server;
pub mod metadata_server;
pub mod names;
pub mod status_socket;
pub mod tcp_connect;
