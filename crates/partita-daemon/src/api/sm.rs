//! The two interfaces between optimizer and components: SM configuration says how much each
//! component is to use, SM suggestion tells a component what that is for it.

use std::collections::BTreeMap;

use axum::extract::State;
use partita_chain_host::Steering;
use partita_core::Count;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::Shared;
use super::chains::{owned, running};
use super::extract::{Input, Name, Object, Output, Segments, pointer, short};
use crate::caller::Caller;
use crate::chains::{Running, RunningComponent};
use crate::problem::{Kind, Problem};

/// How much of its chain's TPCs a component is to use: one of both.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Amount {
    /// A number of TPCs.
    #[schema(minimum = 1, example = 12)]
    tpcs: Option<u32>,
    /// A part of the chain's SMs on the component's GPU, in percent; it gives whole TPCs, rounded
    /// down.
    #[schema(exclusive_minimum = 0, maximum = 100, example = 25.0)]
    sm_percent: Option<f64>,
}

impl Amount {
    /// The TPCs that this is of a chain's on the GPU of one of its components.
    fn tpcs(self, field: &str, chain: &Running, component: &RunningComponent) -> Result<u32, Problem> {
        let all = component.tpcs_of_gpu;
        let refuse = |detail: String| Err(Problem::invalid(field, detail));
        let (given, tpcs) = match (self.tpcs, self.sm_percent) {
            (Some(tpcs), None) => (format!("tpcs {tpcs}"), tpcs),
            (None, Some(percent)) if percent > 0.0 && percent <= 100.0 => {
                // A hair less than a whole number is one: 33.33 % of 3 is 1.
                let part = (f64::from(all) * percent / 100.0 + 0.01).floor();
                (format!("sm_percent {percent}"), part as u32)
            }
            (None, Some(percent)) => {
                return refuse(format!("sm_percent is {percent}; it must be above 0 and at most 100"));
            }
            _ => return refuse("give tpcs or sm_percent, one of both".to_owned()),
        };
        if !(1..=all).contains(&tpcs) {
            return refuse(format!(
                "{given} is {} of the {all} that chain {} has on {}; give the component 1 to {all}",
                Count(tpcs, "TPC"),
                chain.name,
                component.gpu
            ));
        }
        Ok(tpcs)
    }
}

/// How much for each component, by its name; each once.
#[derive(Debug)]
pub(super) struct Amounts(BTreeMap<String, Amount>);

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Amounts;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Amounts, A::Error> {
                let mut amounts = BTreeMap::new();
                while let Some((name, Object(amount))) = members.next_entry::<String, Object<Amount>>()? {
                    if amounts.contains_key(&name) {
                        return Err(A::Error::custom(format!("duplicate field {:?}", short(&name))));
                    }
                    amounts.insert(name, amount);
                }
                Ok(Amounts(amounts))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// How a chain's TPCs are divided.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Configuration {
    /// TPCs that the chain has in all, on all of its GPUs together. Components may share some, so
    /// theirs may add up to more.
    tpcs_of_chain: u32,
    /// TPCs of each component, by its name; empty before the first division.
    tpcs: BTreeMap<String, u32>,
    /// What comes out of the last component with it, in frames per second.
    throughput_fps: Option<f64>,
}

impl From<&Running> for Configuration {
    fn from(chain: &Running) -> Self {
        let each = chain.components.iter();
        Self {
            tpcs_of_chain: chain.tpcs,
            tpcs: each.filter_map(|one| Some((one.name.clone(), one.tpcs?))).collect(),
            throughput_fps: chain.throughput_fps,
        }
    }
}

/// How a running chain's TPCs are divided
#[utoipa::path(get, path = "/v1/chains/{chain}/sm-configuration", tag = "sm", operation_id = "get_sm_configuration",
    params(("chain" = String, Path, description = "Its name")),
    responses((status = 200, body = Configuration)))]
pub(super) async fn configuration(
    State(app): State<Shared>,
    Segments(Name(name)): Segments<Name>,
) -> Result<Output<Configuration>, Problem> {
    Ok(Output(Configuration::from(&running(&app, &name).await?)))
}

/// Divide a running chain's TPCs
///
/// All components at once, from their next frame on. An optimizer that divided them until now
/// stops; PUT …/optimizer lets one begin again.
#[utoipa::path(put, path = "/v1/chains/{chain}/sm-configuration", tag = "sm", operation_id = "set_sm_configuration",
    params(("chain" = String, Path, description = "Its name")),
    request_body(content = BTreeMap<String, Amount>, description = "How much for each component, by its name",
        example = json!({ "decode": { "tpcs": 4 }, "detect": { "sm_percent": 75.0 } })),
    responses((status = 200, body = Configuration, description = "What they are to use from now on")))]
pub(super) async fn configure(
    State(app): State<Shared>,
    caller: Caller,
    Segments(Name(name)): Segments<Name>,
    Input(Amounts(amounts)): Input<Amounts>,
) -> Result<Output<Configuration>, Problem> {
    owned(&app, &name, caller).await?;
    let mut chain = running(&app, &name).await?;
    for (component, amount) in &amounts {
        // The path is there: what it does not accept is a member of the body.
        let unknown = |problem: Problem| Problem::invalid(pointer(component), problem.detail);
        let at = place(&chain, component).map_err(unknown)?;
        let tpcs = amount.tpcs(&pointer(component), &chain, &chain.components[at])?;
        chain.components[at].tpcs = Some(tpcs);
    }
    if let Some(missing) = chain.components.iter().find(|one| !amounts.contains_key(&one.name)) {
        return Err(Problem::invalid(
            "",
            format!(
                "component {} is missing; name each of the chain's, or use its own sm-configuration",
                missing.name
            ),
        ));
    }
    steer(&app, caller, &chain).await
}

/// Say how much of a running chain's TPCs one component is to use
///
/// The others keep what they have. An optimizer that divided them until now stops.
#[utoipa::path(put, path = "/v1/chains/{chain}/components/{component}/sm-configuration", tag = "sm",
    operation_id = "set_sm_configuration_of_component",
    params(("chain" = String, Path, description = "The chain's name"), ("component" = String, Path, description = "The component's name")),
    request_body = Amount,
    responses((status = 200, body = Configuration, description = "What all are to use from now on")))]
pub(super) async fn configure_component(
    State(app): State<Shared>,
    caller: Caller,
    Segments(path): Segments<(Name, Name)>,
    Input(amount): Input<Amount>,
) -> Result<Output<Configuration>, Problem> {
    let (Name(name), Name(component)) = path;
    owned(&app, &name, caller).await?;
    let mut chain = running(&app, &name).await?;
    let at = place(&chain, &component)?;
    let tpcs = amount.tpcs("", &chain, &chain.components[at])?;
    // Before the first division each may use everything.
    chain.components.iter_mut().for_each(|one| one.tpcs = one.tpcs.or(Some(one.tpcs_of_gpu)));
    chain.components[at].tpcs = Some(tpcs);
    steer(&app, caller, &chain).await
}

async fn steer(app: &Shared, caller: Caller, chain: &Running) -> Result<Output<Configuration>, Problem> {
    let tpcs: Vec<u32> = chain.components.iter().filter_map(|one| one.tpcs).collect();
    let (name, steering) = (chain.name.clone(), Steering::Tpcs(tpcs));
    app.blocking(move |app| app.chains().steer(&name, &steering, caller.user)).await?;
    Ok(Output(Configuration { throughput_fps: None, ..Configuration::from(chain) }))
}

fn place(chain: &Running, component: &str) -> Result<usize, Problem> {
    chain.components.iter().position(|one| one.name == component).ok_or_else(|| {
        let names: Vec<&str> = chain.components.iter().map(|one| one.name.as_str()).collect();
        let component = short(component);
        Problem::new(
            Kind::NotFound,
            format!("chain {} has no component {component:?}: it has {}", chain.name, names.join(", ")),
        )
    })
}

/// What a component is to use.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Suggestion {
    /// The number of TPCs; null if the chain's TPCs are not divided yet, so it may use all of them.
    tpcs: Option<u32>,
    /// The part of the chain's TPCs on the component's GPU that this is, in percent.
    sm_percent: f64,
    /// Which TPCs, logical, as ranges.
    #[schema(example = "0-11")]
    tpc_set: Option<String>,
    /// Whether the component does so already.
    obeys: bool,
    /// Whether the component cannot. Its standard error has the reason.
    refuses: bool,
}

/// What a component of a running chain is to use
///
/// Components that use the client library read the same from the chain's file at every frame,
/// without this.
#[utoipa::path(get, path = "/v1/chains/{chain}/components/{component}/sm-suggestion", tag = "sm", operation_id = "get_sm_suggestion",
    params(("chain" = String, Path, description = "The chain's name"), ("component" = String, Path, description = "The component's name")),
    responses((status = 200, body = Suggestion)))]
pub(super) async fn suggestion(
    State(app): State<Shared>,
    Segments(path): Segments<(Name, Name)>,
) -> Result<Output<Suggestion>, Problem> {
    let (Name(name), Name(component)) = path;
    let mut chain = running(&app, &name).await?;
    let at = place(&chain, &component)?;
    let one = chain.components.swap_remove(at);
    let of_chain = f64::from(one.tpcs_of_gpu.max(1));
    Ok(Output(Suggestion {
        tpcs: one.tpcs,
        sm_percent: one.tpcs.map_or(100.0, |tpcs| f64::from(tpcs) * 100.0 / of_chain),
        tpc_set: one.tpc_set,
        obeys: one.obeys,
        refuses: one.refuses,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_component_is_named_once_and_its_amount_is_an_object() {
        let amounts: Amounts =
            serde_json::from_str(r#"{"a": {"tpcs": 1}, "b": {"sm_percent": 50}}"#).unwrap();
        assert_eq!(amounts.0.len(), 2);
        for (body, why) in [
            (r#"{"a": {"tpcs": 1}, "a": {"tpcs": 2}}"#, "duplicate field \"a\""),
            (r#"{"a": [1, null]}"#, "expected an object"),
            (r#"{"a": {"tpcs": 1, "tpcs": 2}}"#, "duplicate field `tpcs`"),
            ("[]", "expected an object"),
        ] {
            let error = serde_json::from_str::<Amounts>(body).unwrap_err().to_string();
            assert!(error.contains(why), "{body}: {error}");
        }
    }
}
