//! Steps of a plan that are one call.

use driver_zfs::name::Object;
use driver_zfs::step::Step;

/// What is set on a copy once the snapshots that came with it are gone goes with its marks. A call that is
/// interrupted between the two leaves snapshots, which the next one looks for in any case.
pub(super) fn with_copy(copy: &Step, rest: &[Step]) -> Option<Step> {
    let Step::Copy {
        from,
        to,
        properties,
    } = copy
    else {
        return None;
    };
    let mut rest = rest.iter();
    let next = rest.find(|step| !matches!(step, Step::DestroySnapshot(_)))?;
    let Step::Set {
        object,
        properties: more,
    } = next
    else {
        return None;
    };
    let of_users = more.iter().all(|property| property.name.is_user());
    (of_users && *object == Object::from(to.clone())).then(|| Step::Copy {
        from: from.clone(),
        to: to.clone(),
        properties: properties.iter().chain(more).cloned().collect(),
    })
}

#[cfg(test)]
mod tests {
    use driver_zfs::name::DatasetName;
    use driver_zfs::property::{Property, PropertyName, PropertyValue};

    use super::*;

    #[test]
    fn what_is_set_on_a_copy_goes_with_its_marks_if_only_snapshots_go_in_between() {
        let of = DatasetName::parse("tank/a").unwrap();
        let to = DatasetName::parse("tank/b").unwrap();
        let leaf = driver_zfs::name::SnapshotLeaf::parse("s").unwrap();
        let from = of.at(&leaf).unwrap();
        let copy = Step::Copy {
            from: from.clone(),
            to: to.clone(),
            properties: Vec::new(),
        };
        let set = |name: PropertyName, object: &DatasetName| Step::Set {
            object: object.clone().into(),
            properties: vec![Property::new(name, PropertyValue::yes())],
        };
        let gone = || Step::DestroySnapshot(from.clone());
        let made = || Step::Create {
            dataset: of.clone(),
            new: driver_zfs::step::New::Filesystem,
            properties: Vec::new(),
        };
        let success = || PropertyName::SUCCESS;
        for (rest, is_merged) in [
            (vec![set(success(), &to)], true),
            (vec![gone(), gone(), set(success(), &to)], true),
            (vec![gone(), set(success(), &of)], false),
            (vec![gone(), set(PropertyName::REFQUOTA, &to)], false),
            (vec![made(), set(success(), &to)], false),
            (vec![gone()], false),
        ] {
            let merged = with_copy(&copy, &rest);
            assert_eq!(merged.is_some(), is_merged, "{rest:?}");
            if let Some(Step::Copy { properties, .. }) = merged {
                assert_eq!(properties.len(), 1);
            }
        }
        assert!(with_copy(&made(), &[set(success(), &to)]).is_none());
    }
}
