#!/bin/sh
# Give each principal the permissions that it needs and no more, with the default names of topics and groups.
# Others: `sidecar --config … acls --format commands --principal tail=User:NAME`.
# Made from sidecar/tail/acls.py by `make docs`; a test compares it with the code.
#
# Usage: BOOTSTRAP=kafka-1:9092 ADMIN=admin.properties PATH=$PATH:/opt/kafka/bin sh acls.sh
# ADMIN: how the one who may change ACLs logs in (kafka-acls.sh --command-config).
set -eu

# setup: whoever runs `sidecar topics --create` before the others are started
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-setup --operation Create --operation Describe --resource-pattern-type literal --topic agent.events --topic agent.compactions --topic agent.findings --topic agent.halts --topic agent.sessions --topic agent.dlq --topic agent.snapshots --topic agent.misplaced --topic agent.decisions --topic agent.halt_acks --topic agent.alerts --topic frontier-fleet-sessions-changelog --topic frontier-fleet-rollups
# tail: `sidecar run`, with topics.create: false
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-tail --operation Read --resource-pattern-type literal --topic agent.events --topic agent.compactions --group frontier-sidecar
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-tail --operation Write --resource-pattern-type literal --topic agent.findings --topic agent.halts --topic agent.sessions --topic agent.dlq --topic agent.decisions
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-tail --operation Read --operation Write --resource-pattern-type literal --topic agent.snapshots --topic agent.misplaced
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-tail --operation Write --resource-pattern-type prefixed --transactional-id frontier-sidecar-
# fleet: `sidecar fleet`, with topics.create: false
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-fleet --operation Read --resource-pattern-type literal --topic agent.findings --topic agent.sessions --topic agent.halts --group frontier-fleet
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-fleet --operation Read --operation Write --resource-pattern-type literal --topic agent.halt_acks --topic agent.alerts --topic frontier-fleet-sessions-changelog --topic frontier-fleet-rollups
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-fleet --operation Write --resource-pattern-type literal --topic agent.dlq
# agents: agents and compactors: they write the log (the clients' Emitter, `sidecar emit`, `sidecar simulate`)
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-agents --operation Write --resource-pattern-type literal --topic agent.events --topic agent.compactions
# listeners: programs that hear of halts without asking the guard (the clients' HaltListener)
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-listeners --operation Read --resource-pattern-type literal --topic agent.halts
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-listeners --operation Write --resource-pattern-type literal --topic agent.halt_acks
# operators: people who look at halts and take them in hand (`sidecar halts`)
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-operators --operation Read --resource-pattern-type literal --topic agent.halts
kafka-acls.sh --bootstrap-server "$BOOTSTRAP" ${ADMIN:+--command-config "$ADMIN"} --add --allow-principal User:frontier-operators --operation Read --operation Write --resource-pattern-type literal --topic agent.halt_acks
