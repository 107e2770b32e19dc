//! Inline volumes: datasets on a pool in memory, images on a real containerd where there is one.

mod containerd;
mod contract;
mod image;
mod zfs;
