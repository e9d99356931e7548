//! Attempts of one job: crashes, hangs, preemption, and the checkpoint from which the next attempt continues.

mod attempts;
mod goodput;
mod hang;
mod hang_forensics;
mod life;
mod preemption;
mod resume;
mod saves;
