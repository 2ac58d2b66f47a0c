//! Kept state on disks that fail, and on real ones.

mod killed;
mod pages;
mod strangers;
mod world;
mod worlds;
