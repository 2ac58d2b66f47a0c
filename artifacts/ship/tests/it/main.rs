//! Bundles on their way: what arrives is the file or nothing, whatever the other side does.

mod bundles;
mod device;
mod layouts;
mod lies;
mod lying;
mod real;
mod signed;
