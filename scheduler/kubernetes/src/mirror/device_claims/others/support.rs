//! What is not supported of claims for devices of other drivers.

use std::collections::BTreeMap;

use super::super::DeviceClaims;
use crate::dra::{Ask, DRIVER, DevicesAsk, Found};

impl DeviceClaims {
    /// Refuses what is not supported of a claim for devices of other drivers.
    ///
    /// # Errors
    /// The text names the request, the driver and what is not supported.
    pub(in super::super) fn check_others(&self, ask: &Ask) -> Result<(), String> {
        for request in &ask.requests {
            for choice in request.choices.iter().filter(|choice| !self.is_ours(choice)) {
                let driver = self.driver_of(choice).unwrap_or_else(|| "another driver".to_owned());
                self.check_all(choice, &driver)?;
            }
            if request.choices.iter().any(|choice| self.is_ours(choice)) {
                continue;
            }
            let lacking =
                request.choices.iter().map(|choice| self.unsupported(choice)).collect::<Result<Vec<_>, _>>()?;
            let lacking: Option<Vec<String>> = lacking.into_iter().collect();
            if let Some(first) = lacking.and_then(|lacking| lacking.into_iter().next()) {
                return Err(first);
            }
        }
        Ok(())
    }

    /// Refuses a request for all devices of a node if one is our driver's, or if it is known of no node which these are, or
    /// that none needs what is not supported.
    fn check_all(&self, ask: &DevicesAsk, driver: &str) -> Result<(), String> {
        if !ask.is_all {
            return Ok(());
        }
        let refused = |why: String| format!("request {:?} asks for all devices of {driver}: {why}", ask.name);
        // For each node, and for the pools that may have devices on several: why not all of its devices can be had.
        let mut whys: BTreeMap<Option<&str>, Option<String>> = BTreeMap::new();
        for (key, _, found) in self.selection(ask)?.all_found() {
            let why = match found {
                Found::Failed(error) => Some(error.clone()),
                // What is too small is none of "all" devices.
                Found::Lacks(_) if key.0 == DRIVER => continue,
                _ if key.0 == DRIVER => return Err(refused(format!("it selects devices of {DRIVER}, too"))),
                Found::Unsupported(feature) => {
                    Some(format!("a device needs {feature}, which Aliquot's scheduler does not support"))
                }
                Found::Usable | Found::Tainted | Found::Lacks(_) => None,
            };
            let node = self.pools.get(key).and_then(|pool| pool.node.as_deref());
            // Whose devices our driver's are is not known before all of them can be looked at.
            let node = node.filter(|_| key.0 != DRIVER);
            let known = whys.entry(node).or_default();
            *known = known.take().or(why);
        }
        let of_several = whys.remove(&None).flatten();
        let is_known_of_one = whys.is_empty() || whys.values().any(Option::is_none);
        let why = of_several.or_else(|| whys.into_values().flatten().next().filter(|_| !is_known_of_one));
        why.map_or(Ok(()), |why| Err(refused(why)))
    }

    /// Why too few devices in the whole cluster can be given out for a request: the others need what is not supported,
    /// or an expression fails on them. `None`: this does not make them too few.
    fn unsupported(&self, ask: &DevicesAsk) -> Result<Option<String>, String> {
        let (mut usable, mut why) = (0_usize, None);
        for ((driver, _), device, found) in self.selection(ask)?.all_found().filter(|((of, _), ..)| of != DRIVER) {
            let named = || format!("request {:?}: device {device:?} of {driver}", ask.name);
            match found {
                Found::Usable | Found::Tainted | Found::Lacks(_) => usable += 1,
                Found::Unsupported(feature) => {
                    why = Some(format!("{} needs {feature}, which Aliquot's scheduler does not support", named()));
                }
                Found::Failed(error) => why = why.or_else(|| Some(format!("request {:?}: {error}", ask.name))),
            }
        }
        Ok(why.filter(|_| usable < usize::from(ask.count)))
    }
}
