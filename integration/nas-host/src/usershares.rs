//! Usershares of samba.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::Answer;
use crate::command::run;

/// Usershares by name: what each is made with after `net usershare add`.
pub type Usershares = BTreeMap<String, Vec<String>>;

/// Makes of the usershares that are there the ones that are wanted.
pub async fn apply(there: &mut Usershares, wanted: Usershares) -> Answer<()> {
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
