//! Files outside the checkpoints: fetched data, links of other users, file systems that do not answer.

mod fetch;
mod foreign_links;
mod full_directories;
mod hung_file_systems;
