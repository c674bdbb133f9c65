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

/// The resources that are served. Only groups of families are in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    /// Their plural names, by `group/version`.
    plurals: BTreeMap<String, BTreeSet<String>>,
    /// Each `group/version` of which the API server has never said what is in it.
    unanswered: BTreeSet<String>,
}

impl Served {
    pub(super) fn has(&self, group: &str, version: &str, plural: &str) -> bool {
        self.plurals.get(&format!("{group}/{version}")).is_some_and(|plurals| plurals.contains(plural))
    }

    /// Whether it is not known what one of these, given as `group/version`, has.
    pub(super) fn lacks_answers(&self, group_versions: &BTreeSet<String>) -> bool {
        !self.unanswered.is_disjoint(group_versions)
    }
}

/// Asks the API server every [`LOOK`], and sends each answer to the families. A group that does not answer has what it
/// had before. Never ends.
pub(super) async fn look(client: Client, served: watch::Sender<Option<Served>>) {
    let mut complaint = None;
    let mut last = Served::default();
    loop {
        let (found, error) = match now(&client, &last).await {
            Ok((found, error)) => (Some(found), error),
            Err(error) => (None, Some(error)),
        };
        if let Some(found) = found {
            last = found.clone();
            served.send_replace(Some(found));
        }
        match error {
            None => complaint = None,
            Some(error) => {
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

/// What is served now, and the last error of a single group.
async fn now(client: &Client, before: &Served) -> Result<(Served, Option<kube::Error>), kube::Error> {
    let wanted: BTreeSet<String> = Family::all().flat_map(Family::group_versions).collect();
    let groups = client.list_api_groups().await?.groups;
    let there = groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version);
    let (mut served, mut failed) = (Served::default(), None);
    for group_version in there.filter(|of| wanted.contains(of)) {
        match client.list_api_group_resources(&group_version).await {
            Ok(list) => {
                let plurals = list.resources.into_iter().map(|resource| resource.name).collect();
                served.plurals.insert(group_version, plurals);
            }
            // The group was removed between the two questions.
            Err(error) if is_not_found(&error) => {}
            Err(error) => {
                failed = Some(error);
                match before.plurals.get(&group_version) {
                    Some(plurals) => _ = served.plurals.insert(group_version, plurals.clone()),
                    None => _ = served.unanswered.insert(group_version),
                }
            }
        }
    }
    Ok((served, failed))
}
