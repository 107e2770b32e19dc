//! A network that loses every packet to and from some ports, as a cut cable does.

use crate::lab::command::{attempt, run};

/// Everything to and from these TCP ports is lost until this is dropped or mended.
#[derive(Debug)]
pub struct Cut(());

// === impl Cut ===

impl Cut {
    /// Cuts.
    pub fn ports(ports: &[u16]) -> Self {
        let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
        let ports = ports.join(",");
        run(&[
            "nft",
            &format!(
                "table inet lab {{ chain cut {{ type filter hook input priority 0; \
                 tcp dport {{ {ports} }} drop; tcp sport {{ {ports} }} drop; }}; }}"
            ),
        ]);
        Self(())
    }

    /// Mends.
    pub fn mend(self) {
        drop(self);
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let _ = attempt(&["nft", "delete table inet lab"]);
    }
}
