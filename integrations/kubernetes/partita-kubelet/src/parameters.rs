//! The opaque parameters of a claim or a device class.
//!
//! ```yaml
//! config:
//! - opaque:
//!     driver: partita.dev
//!     parameters: {apiVersion: partita.dev/v1, kind: TenantParameters, place: spread, spill: host}
//! ```

use k8s_openapi::api::resource::v1::DeviceAllocationConfiguration;
use partita::limits::{LIMITS, LimitSet};
use serde_json::Value;

use crate::DRIVER;

/// The version of the parameters.
pub const API_VERSION: &str = "partita.dev/v1";
/// Their kind.
pub const KIND: &str = "TenantParameters";
/// The limits that they can have, by the names of the command's options. Sizes come from the
/// claim's capacities, so that the scheduler counts them.
pub const NAMES: [&str; 6] = ["priority", "time", "time-policy", "place", "spill", "isolation"];

/// The limits that the configurations of a request ask for. A claim's win over its class's.
///
/// # Errors
/// What is wrong with the first that is not understood, by its name.
pub fn read(configs: &[DeviceAllocationConfiguration], request: &str) -> Result<LimitSet, String> {
    let mut limits = LimitSet::default();
    let main = request.split('/').next().unwrap_or(request);
    for source in ["FromClass", "FromClaim"] {
        for config in configs.iter().filter(|config| config.source == source) {
            let named = config.requests.as_deref().unwrap_or_default();
            let is_for = named.is_empty() || named.iter().any(|name| name == request || name == main);
            let opaque = config.opaque.as_ref().filter(|opaque| is_for && opaque.driver == DRIVER);
            if let Some(opaque) = opaque {
                put(&mut limits, &opaque.parameters.0).map_err(|reason| match source {
                    "FromClass" => format!("the parameters of the device class: {reason}"),
                    _ => format!("the parameters of the claim: {reason}"),
                })?;
            }
        }
    }
    if let Some(config) = configs.iter().find(|one| !["FromClass", "FromClaim"].contains(&&*one.source)) {
        return Err(format!(
            "a configuration comes from {:?}, which this driver does not know",
            config.source
        ));
    }
    if limits.time_policy.is_some() && limits.time.is_none() {
        return Err("time-policy is given without time; write time: 30%, or leave it out".to_owned());
    }
    Ok(limits)
}

fn put(limits: &mut LimitSet, parameters: &Value) -> Result<(), String> {
    let object = parameters.as_object().ok_or("they are no object")?;
    let expect = |key: &str, value: &str| match object.get(key) {
        Some(Value::String(text)) if text == value => Ok(()),
        Some(other) => Err(format!("{key} is {other}; this driver knows {value}")),
        None => Err(format!("{key} is missing; write {key}: {value}")),
    };
    expect("apiVersion", API_VERSION)?;
    expect("kind", KIND)?;
    for (key, value) in object.iter().filter(|(key, _)| !["apiVersion", "kind"].contains(&key.as_str())) {
        let limit = LIMITS.iter().find(|limit| limit.name == key && NAMES.contains(&limit.name));
        let Some(limit) = limit else {
            let instead = match key.as_str() {
                "sm" | "mem" | "memory" | "multiprocessors" | "clients" => {
                    "; sizes are capacities: request them under `capacity.requests`"
                }
                _ => "",
            };
            return Err(format!("there is no {key:?}; there are {}{instead}", NAMES.join(", ")));
        };
        let text = value.as_str().ok_or_else(|| format!("{key} is {value}; write it as a string"))?;
        limit.put(limits, text).map_err(|error| format!("{key}: {error}"))?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::api::resource::v1::OpaqueDeviceConfiguration;
    use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
    use partita_core::Placement;
    use partita_core::time::Policy;
    use serde_json::json;

    use super::*;

    pub(crate) fn config(source: &str, requests: &[&str], mut more: Value) -> DeviceAllocationConfiguration {
        more["apiVersion"] = API_VERSION.into();
        more["kind"] = KIND.into();
        DeviceAllocationConfiguration {
            source: source.to_owned(),
            requests: Some(requests.iter().map(|&name| name.to_owned()).collect()),
            opaque: Some(OpaqueDeviceConfiguration {
                driver: DRIVER.to_owned(),
                parameters: RawExtension(more),
            }),
        }
    }

    #[test]
    fn a_claim_wins_over_its_class_and_others_do_not_count() {
        let class = config("FromClass", &[], json!({"place": "packed", "spill": "host"}));
        let claim =
            config("FromClaim", &["gpu"], json!({"place": "spread", "time": "30%", "time-policy": "soft"}));
        let other = config("FromClaim", &["else"], json!({"place": "packed"}));
        let mut foreign = config("FromClaim", &[], json!({"nonsense": 1}));
        foreign.opaque.as_mut().unwrap().driver = "gpu.nvidia.com".to_owned();
        // The class comes first, wherever it stands.
        let configs = [claim, class, other, foreign];
        for request in ["gpu", "gpu/first"] {
            let limits = read(&configs, request).unwrap();
            assert_eq!(limits.place, Some(Placement::Spread));
            assert_eq!(limits.spill, Some(partita::limits::Spill::Host));
            assert_eq!(limits.time_policy, Some(Policy::Soft));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_its_name() {
        for (parameters, named) in [
            (json!({"prioritty": "high"}), "\"prioritty\""),
            (json!({"sm": "50%"}), "capacity.requests"),
            (json!({"priority": "highest"}), "priority"),
            (json!({"time": "0%"}), "time"),
            (json!({"time": 30}), "time is 30"),
            (json!({"time-policy": "mild"}), "time-policy"),
            (json!({"place": "everywhere"}), "place"),
            (json!({"spill": true}), "spill"),
            (json!({"isolation": ""}), "isolation"),
            (json!({"via": "mask"}), "\"via\""),
        ] {
            let said = read(&[config("FromClaim", &[], parameters.clone())], "gpu").unwrap_err();
            assert!(said.contains(named) && said.contains("of the claim"), "{parameters}: {said}");
        }
        let said = read(&[config("FromClaim", &[], json!({"time-policy": "soft"}))], "gpu").unwrap_err();
        assert!(said.contains("without time"), "{said}");
        let mut old = config("FromClass", &[], json!({}));
        old.opaque.as_mut().unwrap().parameters.0["apiVersion"] = "partita.dev/v0".into();
        let said = read(&[old.clone()], "gpu").unwrap_err();
        assert!(said.contains("partita.dev/v0") && said.contains("device class"), "{said}");
        old.opaque.as_mut().unwrap().parameters.0 = json!("high");
        assert!(read(&[old.clone()], "gpu").unwrap_err().contains("no object"));
        old.source = "FromMoon".to_owned();
        assert!(read(&[old], "gpu").unwrap_err().contains("FromMoon"));
    }
}
