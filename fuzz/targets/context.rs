//! A volume context: the map from the orchestrator to the node, parsed as an attachment.
//!
//! Input: keys and values in turn, as parts.
#![no_main]

use csi_types::{AbsolutePath, Attachment, VolumeContext};
use fuzz::{is_plain_path, one_line};
use libfuzzer_sys::{Corpus, fuzz_target};
use node_utils::{Component, StagingPath, TargetPath};

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some(mut parts) = fuzz::parts(data) else {
        return Corpus::Reject;
    };
    let mut context = VolumeContext::new();
    while let Some(key) = parts.next() {
        let value = parts.next().unwrap_or_default();
        paths(value);
        context.insert(key.to_owned(), value.to_owned());
    }
    match Attachment::parse(&context) {
        Ok(attachment) => {
            let written = attachment.to_context();
            assert_eq!(Attachment::parse(&written).as_ref(), Ok(&attachment));
            assert_eq!(written, attachment.to_context());
            // The encoded context equals the parsed one, except for the spelling of paths, blanks
            // in lists, and keys with empty values.
            let listed = ["portal", "portals", "interface", "transport", "transports"];
            let known = |key: &String| context.contains_key(key) || listed.contains(&key.as_str());
            assert!(written.keys().all(known));
            if let Attachment::Hostpath(hostpath) = &attachment {
                assert!(is_plain_path(hostpath.path.as_str()));
            }
            checked_words(&attachment);
            context.insert("democratic-csi.org/foreign".to_owned(), "x".to_owned());
            assert_eq!(Attachment::parse(&context), Ok(attachment));
        }
        Err(error) => drop(one_line(error)),
    }
    Corpus::Keep
});

/// No word that becomes an argument of a program can be an option, or more than one word.
fn checked_words(attachment: &Attachment) {
    let words: Vec<String> = match attachment {
        Attachment::Hostpath(_) | Attachment::Oneclient(_) | Attachment::Objectivefs(_) => vec![],
        Attachment::Nfs(share) | Attachment::Lustre(share) | Attachment::Smb(share) => {
            vec![share.server.to_string()]
        }
        Attachment::Iscsi(iscsi) => {
            let portals = iscsi.portals.iter().map(ToString::to_string);
            portals.chain([iscsi.iqn.to_string()]).collect()
        }
        Attachment::Nvmeof(nvmeof) => {
            let addresses = nvmeof.transports.iter().map(|way| way.address.clone());
            addresses.chain([nvmeof.nqn.to_string()]).collect()
        }
        Attachment::ZfsLocal(zfs) => vec![zfs.asset.as_str().replace(' ', "_")],
    };
    for word in words {
        assert!(!word.is_empty() && !word.starts_with('-'), "{word:?}");
        assert!(word.chars().all(|c| c.is_ascii_graphic()), "{word:?}");
    }
}

fn paths(text: &str) {
    match AbsolutePath::parse(text) {
        Ok(path) => {
            assert!(is_plain_path(text) && is_plain_path(path.as_str()));
            assert!(!path.as_str().contains("//"));
            assert!(path.as_str() == "/" || !path.as_str().ends_with('/'));
            let parts = |text: &str| -> Vec<String> {
                let parts = text.split('/').filter(|part| !part.is_empty());
                parts.map(str::to_owned).collect()
            };
            assert_eq!(parts(path.as_str()), parts(text), "it leads elsewhere");
            assert_eq!(AbsolutePath::parse(path.as_str()), Ok(path));
        }
        Err(error) => {
            one_line(error);
            assert!(!is_plain_path(text), "refused: {text:?}");
        }
    }
    for path in [
        StagingPath::parse(text).map(|path| path.path().clone()),
        TargetPath::parse(text).map(|path| path.path().clone()),
    ] {
        match path {
            Ok(path) => assert!(path.as_str() != "/" && is_plain_path(path.as_str())),
            Err(error) => drop(one_line(error)),
        }
    }
    if let Ok(component) = Component::parse(text) {
        let text = component.as_str();
        assert!(!text.is_empty() && text.len() <= 255);
        assert!(!text.contains(['/', '\0']) && text != "." && text != "..");
    }
}
