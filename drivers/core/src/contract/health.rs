//! Health: what was just made is well, and what does not exist is neither well nor ill.

use csi_types::Conditions;

use super::{Fresh, call};
use crate::request::{DeleteVolume, HealthQuery};
use crate::volume::PageRequest;

pub(super) async fn what_exists_and_works_is_healthy_and_what_is_missing_is_not(fresh: &Fresh) {
    let driver = &fresh.driver;
    let (verbs, call) = (driver.capabilities(), call());
    let missing = fresh.id("contract-missing");
    if !verbs.health {
        let asked = [missing];
        let refused = driver.conditions(&call, HealthQuery::whole(&asked)).await;
        assert!(refused.is_err(), "health is not offered, and answered");
        return;
    }
    let (one, two) = (
        fresh.create("contract-one").await.id,
        fresh.create("contract-two").await.id,
    );
    let asked = [two.clone(), missing, one];
    for id in [&asked[0], &asked[2]] {
        let found = driver.conditions(&call, HealthQuery::of_one(id)).await;
        let found = found.unwrap_or_else(|error| panic!("health: {}", error.chain()));
        let healthy = [Some(Conditions::default())];
        assert_eq!(found, healthy, "{id}");
    }
    for query in [HealthQuery::whole(&asked), HealthQuery::of_storage(&asked)] {
        let found = driver.conditions(&call, query).await;
        let found = found.unwrap_or_else(|error| panic!("health: {}", error.chain()));
        let [two, missing, one] = &*found else {
            panic!("{} answers about three volumes", found.len());
        };
        assert_eq!(*missing, None);
        for found in [one, two] {
            let found = found.as_ref().expect("it exists");
            assert!(found.is_healthy(), "{found:?}");
        }
    }
    let deleted = driver.delete_volume(&call, DeleteVolume::new(&two)).await;
    deleted.unwrap_or_else(|error| panic!("delete: {}", error.chain()));
    let asked = [two];
    let found = driver.conditions(&call, HealthQuery::whole(&asked)).await;
    assert_eq!(found.expect("an answer"), [None]);
    if verbs.list_volumes {
        let listed = driver.list_unhealthy(&call, &PageRequest::default()).await;
        let listed = listed.unwrap_or_else(|error| panic!("list: {}", error.chain()));
        assert!(listed.entries.is_empty() && listed.next.is_none());
    }
}
