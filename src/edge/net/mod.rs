//! Sockets: HTTP, TCP, and those of a run for its status and for reports.

pub mod borrowed_port;
pub mod free_port;
pub mod gang;
pub mod http;
pub mod http_server;
pub mod metadata_server;
pub mod names;
pub mod post;
pub mod report_socket;
pub mod status_socket;
pub mod tcp_connect;
