//! `sharing.smb` as usershares of samba.

use nas_host::usershares::Usershares;

use super::running;
use crate::rows::{Row, Rows, flag, text};

/// The shares of samba.
pub(super) fn wanted(rows: &Rows) -> Usershares {
    let all = rows.all("sharing.smb").filter(|row| flag(row, "enabled"));
    let share = |row: &Row| {
        let name = text(row, "name").to_owned();
        // `readonly` from 25.10 on.
        let readonly = flag(row, "ro") || flag(row, "readonly");
        // Everyone, by the number: names take long to find on a machine that is busy.
        let access = if readonly { "S-1-1-0:R" } else { "S-1-1-0:F" };
        let guests = if flag(row, "guestok") {
            "guest_ok=y"
        } else {
            "guest_ok=n"
        };
        let words = [
            &name,
            text(row, "path"),
            text(row, "comment"),
            access,
            guests,
        ];
        (name.clone(), words.map(str::to_owned).to_vec())
    };
    if running(rows, "cifs") {
        all.map(share).collect()
    } else {
        Usershares::new()
    }
}
