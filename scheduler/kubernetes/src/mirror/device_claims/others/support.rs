//! What is not supported of claims for devices of other drivers.

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

    /// Refuses a request for all devices if it is not known which these are, if one is our driver's, or if one needs
    /// what is not supported.
    fn check_all(&self, ask: &DevicesAsk, driver: &str) -> Result<(), String> {
        if !ask.is_all {
            return Ok(());
        }
        let mut found = self.selection(ask)?.all_found();
        let why = found.find_map(|((of, _), _, found)| match found {
            Found::Failed(error) => Some(error.clone()),
            _ if of == DRIVER => Some(format!("it selects devices of {DRIVER}, too")),
            Found::Unsupported(feature) => {
                Some(format!("a device needs {feature}, which Aliquot's scheduler does not support"))
            }
            _ => None,
        });
        why.map_or(Ok(()), |why| Err(format!("request {:?} asks for all devices of {driver}: {why}", ask.name)))
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
