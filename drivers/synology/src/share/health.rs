//! The health of shared folders: of the volume of the NAS that each lies on, and of its clients.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use driver_core::{
    Call, Condition, Conditions, Error, Health, HealthDepth, HealthQuery, Kind, Lister, Page,
    PageRequest, VolumeId,
};

use super::api::{Rule, Share};
use super::{Access, Shares, is_same_client, lost, network};
use crate::error::Failure;
use crate::health::{not_exported, of_nas_volumes, partly_exported};

const DOING: &str = "look at the health of volumes";

#[async_trait]
impl Health for Shares {
    /// The clients of a folder are a call for each, and are looked at where such calls are wanted.
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let shares = self.looked(call, query.ids).await?;
        let found: Vec<Option<&Share>> = query.ids.iter().map(|id| shares.get(id)).collect();
        if found.iter().any(Option::is_none) {
            self.check_nas(call, DOING).await?;
        }
        let paths = found.iter().flatten().map(|share| share.vol_path.as_str());
        let paths: BTreeSet<&str> = paths.collect();
        let common = of_nas_volumes(&self.client, call, paths, DOING).await?;
        let of_nas = |share: &Share| {
            let conditions = common.get(share.vol_path.as_str());
            conditions.cloned().unwrap_or_default()
        };
        let mut all = Vec::with_capacity(found.len());
        for share in found {
            let Some(share) = share else {
                all.push(None);
                continue;
            };
            let mut conditions = of_nas(share);
            if query.depth == HealthDepth::Each {
                let lacking = self.lacking(call, share).await;
                conditions.extend(lacking.map_err(|failure| lost(call, failure, DOING))?);
            }
            all.push(Some(conditions));
        }
        Ok(all)
    }

    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error> {
        let listed = self.list_volumes(call, page).await?;
        Ok(listed.map(|volume| volume.id))
    }
}

impl Shares {
    /// The shared folders of these volumes that are whole.
    async fn looked(
        &self,
        call: &Call,
        ids: &[VolumeId],
    ) -> Result<BTreeMap<VolumeId, Share>, Error> {
        let mut all = BTreeMap::new();
        if let [id] = ids {
            let share = match self.find(call, id, DOING).await {
                Err(error) if error.kind() == Kind::Conflict => None,
                found => found?,
            };
            all.extend(share.map(|share| (id.clone(), share)));
        } else {
            for share in self.shares(call, DOING).await? {
                all.extend(self.names.id(&share).map(|id| (id, share)));
            }
        }
        all.retain(|_, share| share.is_whole());
        Ok(all)
    }

    /// The condition of a folder that not all clients of the configuration may use.
    async fn lacking(&self, call: &Call, share: &Share) -> Result<Option<Condition>, Failure> {
        let (client, name) = (&self.client, share.name.as_str());
        let (all, open) = match &self.access {
            Access::Nfs { clients, .. } => {
                let rules = client.rules(call, name).await?;
                (clients.len(), let_in(clients, &rules))
            }
            Access::Smb { users } => {
                let there = client.users(call, name).await?;
                let is_in = |one: &&String| {
                    let mut entries = there.iter();
                    entries.any(|entry| entry.name == **one && entry.is_writable)
                };
                (users.len(), users.iter().filter(is_in).count())
            }
        };
        Ok(if open >= all {
            None
        } else if open == 0 {
            let why = format!("no client of the configuration may use `{name}`");
            Some(not_exported(&why))
        } else {
            let why = format!("only {open} of {all} clients of the configuration may use `{name}`");
            Some(partly_exported(&why))
        })
    }
}

/// The number of clients that these rules let in. DSM may write a client in a form that is not known here: such a rule is
/// that of one of them.
fn let_in(clients: &[String], rules: &[Rule]) -> usize {
    let is_of = |rule: &Rule, wanted: &String| covers(&rule.client, wanted);
    let is_in = |wanted: &&String| rules.iter().any(|rule| is_of(rule, wanted));
    let is_odd = |rule: &&Rule| {
        let is_known = clients.iter().any(|wanted| is_of(rule, wanted));
        !is_known && network(&rule.client).is_none()
    };
    clients.iter().filter(is_in).count() + rules.iter().filter(is_odd).count()
}

/// Whether a rule lets this client in: it is for it, for a network around it, or for all.
fn covers(rule: &str, wanted: &str) -> bool {
    if rule == "*" || is_same_client(rule, wanted) {
        return true;
    }
    let (Some((around, length, bits)), Some((first, longer, same))) =
        (network(rule), network(wanted))
    else {
        return false;
    };
    let more = longer.checked_sub(length);
    bits == same && more.is_some_and(|more| first.checked_shr(more).unwrap_or(0) == around)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn let_in_by(rules: &[&str]) -> usize {
        let clients = ["10.0.0.0/24".to_owned(), "node-7".to_owned()];
        let rule = |client: &&str| Rule {
            client: (*client).to_owned(),
        };
        let rules: Vec<Rule> = rules.iter().map(rule).collect();
        let_in(&clients, &rules)
    }

    #[test]
    fn clients_are_let_in_by_their_rules_and_by_those_that_are_not_understood() {
        for (rules, expected) in [
            (vec![], 0),
            (vec!["10.0.0.0/255.255.255.0"], 1),
            (vec!["NODE-7", "10.0.0.0/24"], 2),
            (vec!["10.9.0.0/24", "10.8.0.0/24"], 0),
            (vec!["10.0.0.0/8"], 1),
            (vec!["10.0.0.0/28"], 0),
            (vec!["fd00::/8"], 0),
            (vec!["*"], 2),
            (vec!["10.0.0.0/24", "@nodes"], 2),
            (vec!["10.9.0.0/24", "@nodes"], 1),
        ] {
            assert_eq!(let_in_by(&rules), expected, "{rules:?}");
        }
    }
}
