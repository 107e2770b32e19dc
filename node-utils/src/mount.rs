//! Mounting and unmounting by system calls, without child processes.
