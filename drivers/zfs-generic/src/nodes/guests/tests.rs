//! What is remembered of nodes, and who goes.

use super::*;

fn node(text: &str) -> NodeId {
    NodeId::parse(text).unwrap()
}

fn name(text: &str) -> NodeName {
    Form::Initiator.parse(text).unwrap()
}

fn read(text: &str) -> Guests {
    Guests::read(Form::Initiator, text)
}

fn nobody(_: &GuestId) -> bool {
    false
}

fn admit(guests: &mut Guests, id: &str, called: &str) {
    guests.admit(&node(id), &name(called), &nobody);
}

/// Pairs of names and ids, as they are written.
fn pairs(pairs: &[(&str, &str)]) -> String {
    let one = |(name, id): &(&str, &str)| format!("{name}#{}", GuestId::of(id).0);
    pairs.iter().map(one).collect::<Vec<_>>().join(",")
}

fn without(guests: &Guests, id: &str, called: Option<&str>) -> Guests {
    let called = called.map(name);
    guests.without(Some(Goer {
        node: &node(id),
        name: called.as_ref(),
        shares: &nobody,
    }))
}

#[test]
fn a_node_is_found_by_its_id_whatever_it_is_called_now() {
    let mut guests = Guests::default();
    admit(&mut guests, "a", "iqn.old");
    admit(&mut guests, "b", "iqn.b");
    admit(&mut guests, "a", "iqn.new");
    admit(&mut guests, "a", "iqn.old");
    let all = [("iqn.old", "a"), ("iqn.b", "b"), ("iqn.new", "a")];
    assert_eq!(guests.text(), pairs(&all));
    assert_eq!(read(&guests.text()), guests);
    let left = without(&guests, "a", None);
    assert_eq!(left.text(), pairs(&[("iqn.b", "b")]));
    assert!(guests.without(None).is_empty());
}

#[test]
fn a_node_whose_id_has_changed_goes_by_the_name_that_it_still_has() {
    let mut guests = Guests::default();
    admit(&mut guests, "old", "iqn.a");
    admit(&mut guests, "b", "iqn.b");
    assert_eq!(
        without(&guests, "new", Some("iqn.a")).names(),
        [name("iqn.b")]
    );
    admit(&mut guests, "new", "iqn.a");
    assert_eq!(guests.text(), pairs(&[("iqn.b", "b"), ("iqn.a", "new")]));
    assert_eq!(
        without(&guests, "new", Some("iqn.a")).names(),
        [name("iqn.b")]
    );
}

#[test]
fn a_name_that_two_nodes_share_stays_with_the_other_one() {
    let shares: &dyn Fn(&GuestId) -> bool = &|id| *id == GuestId::of("b");
    let mut guests = Guests::default();
    for id in ["a", "b"] {
        guests.admit(&node(id), &name("iqn.x"), &|_| true);
    }
    let left = guests.without(Some(Goer {
        node: &node("a"),
        name: Some(&name("iqn.x")),
        shares,
    }));
    assert_eq!(left.text(), pairs(&[("iqn.x", "b")]));
}

#[test]
fn whoever_is_being_put_out_gets_in_no_more_until_it_is_let_in_again() {
    let mut guests = Guests::default();
    admit(&mut guests, "a", "iqn.a");
    admit(&mut guests, "b", "iqn.b");
    let a = node("a");
    let goer = Goer {
        node: &a,
        name: None,
        shares: &nobody,
    };
    let mut marked = guests.clone().marked(Some(goer));
    assert_eq!(marked.names(), [name("iqn.b")]);
    assert_eq!(marked.names_of(Some(goer)), [name("iqn.a")]);
    assert_eq!(read(&marked.text()), marked);
    assert_eq!(without(&marked, "a", None).text(), pairs(&[("iqn.b", "b")]));
    // Another one that goes does not forget it.
    assert!(without(&marked, "b", None).text().starts_with("!iqn.a#"));
    admit(&mut marked, "a", "iqn.a");
    assert_eq!(marked.names(), [name("iqn.b"), name("iqn.a")]);
    assert!(guests.marked(None).names().is_empty());
}

#[test]
fn whoever_was_remembered_by_name_alone_is_found_by_it() {
    let mut guests = read("iqn.a,../x,iqn.b,iqn.a,");
    assert!(guests.has_strangers());
    assert_eq!(guests.text(), "iqn.a,iqn.b");
    assert_eq!(without(&guests, "a", Some("iqn.a")).text(), "iqn.b");
    admit(&mut guests, "b", "iqn.b");
    let b = pairs(&[("iqn.b", "b")]);
    assert_eq!(guests.text(), format!("iqn.a,{b}"));
    assert_eq!(guests.clone().known().text(), b);
    let both = read(&b).and(&[name("iqn.a"), name("iqn.b")]);
    assert_eq!(both.text(), format!("{b},iqn.a"));
}

#[test]
fn a_node_without_a_name_is_known_as_gone_for_as_long_as_there_are_strangers() {
    let mut guests = read("iqn.x");
    admit(&mut guests, "b", "iqn.b");
    assert!(guests.knows(&node("b")) && !guests.knows(&node("c")));
    let left = without(&guests, "b", None);
    assert!(left.knows(&node("b")));
    assert_eq!(left.names(), [name("iqn.x")]);
    assert_eq!(read(&left.text()), left);
    assert_eq!(without(&left, "b", None), left);
    let mut again = left.clone();
    admit(&mut again, "b", "iqn.b");
    assert_eq!(again, guests);
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
    let mut guests = read(written);
    assert_eq!(guests.text().split(',').count(), odd.len());
    for id in odd {
        assert!(guests.knows(&node(id)), "{id}");
        guests = without(&guests, id, None);
    }
    assert!(guests.is_empty());
}

#[test]
fn three_hundred_nodes_fit_and_those_that_do_not_are_counted_before_they_are_let_in() {
    let mut guests = Guests::default();
    let mut count = 0;
    while guests.fit() {
        let id = format!("n=worker-{count},i=iqn.1993-08.org.debian:01:{count:012x}");
        let called = Form::Address.parse(&format!("10.1.{}.{}", count / 256, count % 256));
        guests.admit(&node(&id), &called.unwrap(), &nobody);
        count += 1;
    }
    assert!(count > 300, "{count}");
    guests.guests.pop();
    assert!(guests.marked(None).text().len() <= MAX_VALUE);
}
