//! `sharing.smb` as usershares of samba.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::command::run;
use super::{Answer, running};
use crate::rows::{Row, Rows, flag, text};

/// The shares that are there, by name: what each was made with.
pub(super) type Shares = BTreeMap<String, Vec<String>>;

/// Makes samba share what the rows say.
pub(super) async fn apply(there: &mut Shares, rows: &Rows) -> Answer<()> {
    let wanted = wanted(rows);
    let names: Vec<String> = there.keys().cloned().collect();
    for name in names {
        if there.get(&name) != wanted.get(&name) {
            run(&["net", "usershare", "delete", &name]).await?;
            there.remove(&name);
            // From those who have it mounted, too.
            run(&["smbcontrol", "smbd", "close-share", &name]).await?;
        }
    }
    for (name, share) in wanted {
        if let Entry::Vacant(new) = there.entry(name) {
            let words = share.iter().map(String::as_str);
            let words = ["net", "usershare", "add"].into_iter().chain(words);
            run(&words.collect::<Vec<_>>()).await?;
            new.insert(share);
        }
    }
    Ok(())
}

fn wanted(rows: &Rows) -> Shares {
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
        Shares::new()
    }
}
