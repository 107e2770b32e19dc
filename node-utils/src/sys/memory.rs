//! What the allocator keeps of memory that is free.

/// Gives it back to the kernel. The allocator of glibc keeps what lies between allocations that live on: after a page
/// of thousands of rows, many times what they need.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no crate offers malloc_trim")]
    // SAFETY: it takes a number, and touches nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
