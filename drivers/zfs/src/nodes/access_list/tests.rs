//! Admission and revocation of nodes.

use super::*;

fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

fn name(text: &str) -> NodeName {
    Form::Initiator.parse(text).unwrap()
}

fn read(text: &str) -> AccessList {
    AccessList::read(Form::Initiator, text)
}

fn not_shared(_: &NodeDigest) -> bool {
    false
}

fn admit(access_list: &mut AccessList, id: &str, called: &str) {
    access_list.admit(&node(id), &name(called), &not_shared);
}

/// Pairs of names and ids, as they are written.
fn pairs(pairs: &[(&str, &str)]) -> String {
    let one = |(name, id): &(&str, &str)| format!("{name}#{}", NodeDigest::of(id).0);
    pairs.iter().map(one).collect::<Vec<_>>().join(",")
}

fn without(access_list: &AccessList, id: &str, called: Option<&str>) -> AccessList {
    let called = called.map(name);
    access_list.without(Some(RevokedNode {
        id: &NodeDigest::of(id),
        name: called.as_ref(),
        shares: &not_shared,
    }))
}

#[test]
fn a_node_is_found_by_its_id_whatever_it_is_called_now() {
    let mut access_list = AccessList::default();
    admit(&mut access_list, "a", "iqn.old");
    admit(&mut access_list, "b", "iqn.b");
    admit(&mut access_list, "a", "iqn.new");
    admit(&mut access_list, "a", "iqn.old");
    let all = [("iqn.old", "a"), ("iqn.b", "b"), ("iqn.new", "a")];
    assert_eq!(access_list.text(), pairs(&all));
    assert_eq!(read(&access_list.text()), access_list);
    let left = without(&access_list, "a", None);
    assert_eq!(left.text(), pairs(&[("iqn.b", "b")]));
    assert!(access_list.without(None).is_empty());
}

#[test]
fn a_node_whose_id_has_changed_goes_by_the_name_that_it_still_has() {
    let mut access_list = AccessList::default();
    admit(&mut access_list, "old", "iqn.a");
    admit(&mut access_list, "b", "iqn.b");
    assert_eq!(
        without(&access_list, "new", Some("iqn.a")).names(),
        [name("iqn.b")]
    );
    admit(&mut access_list, "new", "iqn.a");
    assert_eq!(
        access_list.text(),
        pairs(&[("iqn.b", "b"), ("iqn.a", "new")])
    );
    assert_eq!(
        without(&access_list, "new", Some("iqn.a")).names(),
        [name("iqn.b")]
    );
}

#[test]
fn a_name_that_two_nodes_share_stays_with_the_other_one() {
    let shares: &dyn Fn(&NodeDigest) -> bool = &|id| *id == NodeDigest::of("b");
    let mut access_list = AccessList::default();
    for id in ["a", "b"] {
        access_list.admit(&node(id), &name("iqn.x"), &|_| true);
    }
    let left = access_list.without(Some(RevokedNode {
        id: &NodeDigest::of("a"),
        name: Some(&name("iqn.x")),
        shares,
    }));
    assert_eq!(left.text(), pairs(&[("iqn.x", "b")]));
}

#[test]
fn a_node_with_a_revocation_in_progress_has_no_access_until_it_is_admitted_again() {
    let mut access_list = AccessList::default();
    admit(&mut access_list, "a", "iqn.a");
    admit(&mut access_list, "b", "iqn.b");
    let a = NodeDigest::of("a");
    let revoked = RevokedNode {
        id: &a,
        name: None,
        shares: &not_shared,
    };
    let mut marked = access_list.clone().marked(Some(revoked));
    assert_eq!(marked.names(), [name("iqn.b")]);
    assert_eq!(marked.names_of(Some(revoked)), [name("iqn.a")]);
    assert_eq!(read(&marked.text()), marked);
    assert_eq!(without(&marked, "a", None).text(), pairs(&[("iqn.b", "b")]));
    // Another one that goes does not forget it.
    assert!(without(&marked, "b", None).text().starts_with("!iqn.a#"));
    admit(&mut marked, "a", "iqn.a");
    assert_eq!(marked.names(), [name("iqn.b"), name("iqn.a")]);
    assert!(access_list.marked(None).names().is_empty());
}

#[test]
fn a_node_that_is_remembered_by_name_alone_is_found_by_it() {
    let mut access_list = read("iqn.a,../x,iqn.b,iqn.a,");
    assert!(access_list.has_strangers());
    assert_eq!(access_list.text(), "iqn.a,iqn.b");
    assert_eq!(without(&access_list, "a", Some("iqn.a")).text(), "iqn.b");
    admit(&mut access_list, "b", "iqn.b");
    let b = pairs(&[("iqn.b", "b")]);
    assert_eq!(access_list.text(), format!("iqn.a,{b}"));
    assert_eq!(access_list.clone().known().text(), b);
    let both = read(&b).and(&[name("iqn.a"), name("iqn.b")]);
    assert_eq!(both.text(), format!("{b},iqn.a"));
}

#[test]
fn a_node_without_a_name_is_known_as_gone_for_as_long_as_there_are_strangers() {
    let mut access_list = read("iqn.x");
    admit(&mut access_list, "b", "iqn.b");
    assert!(access_list.knows(&node("b")) && !access_list.knows(&node("c")));
    let left = without(&access_list, "b", None);
    assert!(left.knows(&node("b")));
    assert_eq!(left.names(), [name("iqn.x")]);
    assert_eq!(read(&left.text()), left);
    assert_eq!(without(&left, "b", None), left);
    let mut again = left.clone();
    admit(&mut again, "b", "iqn.b");
    assert_eq!(again, access_list);
    assert!(without(&left, "x", Some("iqn.x")).is_empty());
    let mut many = left;
    for number in 0..3 * MOST_GONE {
        many = without(&many, &format!("n{number}"), None);
    }
    assert_eq!(many.gone.len(), MOST_GONE);
}

#[test]
fn ids_that_were_written_out_are_those_of_the_same_nodes() {
    let odd = ["n=w-7,x=é %", "n%3Dw-7", "n=w-7", "a"];
    let written = "iqn.a=n%3Dw-7%2Cx%3D%C3%A9%20%25,iqn.a=n%253Dw-7,iqn.a=n%3Dw-7,iqn.a=a";
    let mut access_list = read(written);
    assert_eq!(access_list.text().split(',').count(), odd.len());
    for id in odd {
        assert!(access_list.knows(&node(id)), "{id}");
        access_list = without(&access_list, id, None);
    }
    assert!(access_list.is_empty());
}

#[test]
fn three_hundred_nodes_fit_and_a_full_list_is_detected_before_an_admission() {
    let mut access_list = AccessList::default();
    let mut count = 0;
    while access_list.fit() {
        let id = format!("n=worker-{count},i=iqn.1993-08.org.debian:01:{count:012x}");
        let called = Form::Address.parse(&format!("10.1.{}.{}", count / 256, count % 256));
        access_list.admit(&node(&id), &called.unwrap(), &not_shared);
        count += 1;
    }
    assert!(count > 300, "{count}");
    access_list.entries.pop();
    assert!(access_list.marked(None).text().len() <= MAX_VALUE);
}
