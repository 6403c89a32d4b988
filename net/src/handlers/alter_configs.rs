//! AlterConfigs 0–2: replaces all that a topic sets itself; what is not named falls back to its default.
//!
//! Differences from Kafka: broker configurations can't be changed while the broker runs, and say so.

use std::collections::HashSet;

use kaas_proto::control::ConfigChange;
use kaas_proto::kafka::ErrorCode;
use kaas_proto::kafka::messages::alter_configs::{
    AlterConfigsRequest, AlterConfigsResource, AlterConfigsResourceResponse, AlterConfigsResponse,
};

use crate::config_resource::{self, Alteration};
use crate::context::{Call, Handle};
use crate::leaders::Refusal;

impl Handle for AlterConfigsRequest {
    async fn handle(self, call: &Call) -> AlterConfigsResponse {
        let alteration = |resource: &AlterConfigsResource| Alteration {
            kind: resource.resource_type,
            name: resource.resource_name.clone(),
            change: change(resource),
        };
        let changes = self.resources.iter().map(alteration).collect();
        let outcomes = config_resource::alter(call, changes, self.validate_only).await;
        let responses = self.resources.into_iter().zip(outcomes).map(|(resource, outcome)| {
            let (error_code, error_message) = config_resource::told(outcome);
            AlterConfigsResourceResponse {
                error_code,
                error_message,
                resource_type: resource.resource_type,
                resource_name: resource.resource_name,
            }
        });
        AlterConfigsResponse { responses: responses.collect(), ..Default::default() }
    }
}

fn change(resource: &AlterConfigsResource) -> Result<ConfigChange, Refusal> {
    let mut seen = HashSet::new();
    if let Some(twice) = resource.configs.iter().find(|config| !seen.insert(&config.name)) {
        return Err(Refusal::new(ErrorCode::InvalidRequest, format!("{} appears twice", twice.name)));
    }
    let settings = resource.configs.iter().map(|config| match &config.value {
        Some(value) => Ok((config.name.to_string(), value.to_string())),
        None => Err(Refusal::new(ErrorCode::InvalidRequest, format!("{} has no value", config.name))),
    });
    Ok(ConfigChange::Replace(settings.collect::<Result<_, _>>()?))
}
