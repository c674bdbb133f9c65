//! Which resources the API server serves. CustomResourceDefinitions come and go while the scheduler runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aliquot_api_server::{Client, is_not_found, message};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use super::family::Family;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// The plural names of the resources that are served, by `group/version`. Only groups of families are in it.
#[derive(Debug, Default)]
pub(super) struct Served(BTreeMap<String, BTreeSet<String>>);

impl Served {
    pub(super) fn has(&self, group: &str, version: &str, plural: &str) -> bool {
        self.0.get(&format!("{group}/{version}")).is_some_and(|plurals| plurals.contains(plural))
    }
}

/// Asks the API server every [`LOOK`], and sends each complete answer to the families. Never ends.
pub(super) async fn look(client: Client, served: watch::Sender<Option<Served>>) {
    let mut complaint = None;
    loop {
        match now(&client).await {
            Ok(found) => {
                complaint = None;
                served.send_replace(Some(found));
            }
            Err(error) => {
                let text = message(&error);
                if complaint.as_ref() != Some(&text) {
                    warn!(error = text, "cannot see which kinds of objects the cluster has; trying again");
                    complaint = Some(text);
                }
            }
        }
        sleep(LOOK).await;
    }
}

async fn now(client: &Client) -> Result<Served, kube::Error> {
    let wanted: BTreeSet<String> = Family::all().flat_map(Family::group_versions).collect();
    let groups = client.list_api_groups().await?.groups;
    let there = groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version);
    let mut served = Served::default();
    for group_version in there.filter(|of| wanted.contains(of)) {
        match client.list_api_group_resources(&group_version).await {
            Ok(list) => {
                let plurals = list.resources.into_iter().map(|resource| resource.name).collect();
                served.0.insert(group_version, plurals);
            }
            // The group was removed between the two questions.
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(served)
}
