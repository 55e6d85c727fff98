{{/* At most 44: with what is put behind it, the name of a StatefulSet may have 52 (its pods carry it in a label). */}}
{{- define "frontier.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "frontier.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "frontier.labels" -}}
{{ include "frontier.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: frontier-sidecar
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "frontier.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "frontier.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "frontier.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What must not be left open: said at rendering, not found in the logs of a pod that does not start. */}}
{{- define "frontier.check" -}}
{{- $v := .Values -}}
{{- if and $v.tail.enabled $v.guard.enabled (not $v.guard.tokenSecret) (not $v.guard.tls.clientCaSecret) -}}
{{- fail "guard.enabled needs guard.tokenSecret (a Secret with the tokens that may ask), or guard.tls.secret and guard.tls.clientCaSecret" -}}
{{- end -}}
{{- if and $v.fleet.enabled (not $v.fleet.tokenSecret) (not $v.guard.tls.clientCaSecret) -}}
{{- fail "fleet.enabled needs fleet.tokenSecret (a Secret with the token of workers and readers), or guard.tls.secret and guard.tls.clientCaSecret" -}}
{{- end -}}
{{- if and $v.guard.tls.clientCaSecret (not $v.guard.tls.secret) -}}
{{- fail "guard.tls.clientCaSecret needs guard.tls.secret: client certificates are asked for over TLS" -}}
{{- end -}}
{{- if and (hasPrefix "SASL" $v.kafka.securityProtocol) (not $v.kafka.sasl.mechanism) -}}
{{- fail (printf "kafka.securityProtocol is %s: set kafka.sasl.mechanism" $v.kafka.securityProtocol) -}}
{{- end -}}
{{- if and $v.kafka.sasl.mechanism (not (hasPrefix "SASL" $v.kafka.securityProtocol)) -}}
{{- fail "kafka.sasl.mechanism is set: kafka.securityProtocol has to be SASL_SSL (or SASL_PLAINTEXT)" -}}
{{- end -}}
{{- if and $v.kafka.sasl.mechanism (not $v.kafka.sasl.passwordSecret) -}}
{{- fail "kafka.sasl.mechanism needs kafka.sasl.passwordSecret (a Secret with the password)" -}}
{{- end -}}
{{- range $who := list "fleet" "setup" -}}
{{- $name := index $v.kafka.sasl (printf "%sUsername" $who) -}}
{{- $secret := index $v.kafka.sasl (printf "%sPasswordSecret" $who) -}}
{{- if ne (empty $name) (empty $secret) -}}
{{- fail (printf "kafka.sasl.%sUsername and kafka.sasl.%sPasswordSecret: set both, or none" $who $who) -}}
{{- end -}}
{{- end -}}
{{- if and (or $v.kafka.tls.caSecret $v.kafka.tls.clientSecret) (not (hasSuffix "SSL" $v.kafka.securityProtocol)) -}}
{{- fail "kafka.tls is set: kafka.securityProtocol has to be SSL or SASL_SSL" -}}
{{- end -}}
{{- end -}}

{{/* The settings as the YAML file: what the user gives, under what the chart decides. Secrets are never in it. */}}
{{- define "frontier.config" -}}
{{- $v := .Values -}}
{{- $kafka := dict "bootstrap_servers" $v.kafka.bootstrapServers "security_protocol" $v.kafka.securityProtocol -}}
{{- if $v.kafka.tls.caSecret -}}{{- $_ := set $kafka "ssl_cafile" "/etc/frontier/kafka-ca/ca.crt" -}}{{- end -}}
{{- if $v.kafka.tls.clientSecret -}}
{{- $_ := set $kafka "ssl_certfile" "/etc/frontier/kafka-client/tls.crt" -}}
{{- $_ := set $kafka "ssl_keyfile" "/etc/frontier/kafka-client/tls.key" -}}
{{- end -}}
{{- if $v.kafka.sasl.mechanism -}}
{{- $_ := set $kafka "sasl_mechanism" $v.kafka.sasl.mechanism -}}
{{- $_ := set $kafka "sasl_password_file" "/etc/frontier/kafka-password/password" -}}
{{- end -}}
{{- $guard := dict "enabled" $v.guard.enabled -}}
{{- if $v.guard.tls.secret -}}
{{- $_ := set $guard "tls_certfile" "/etc/frontier/tls/tls.crt" -}}
{{- $_ := set $guard "tls_keyfile" "/etc/frontier/tls/tls.key" -}}
{{- end -}}
{{- if $v.guard.tls.clientCaSecret -}}{{- $_ := set $guard "tls_client_ca" "/etc/frontier/client-ca/ca.crt" -}}{{- end -}}
{{- $topics := dict "create" false "partitions" (int $v.topics.partitions) "replication_factor" (int $v.topics.replicationFactor) -}}
{{- $chart := dict "kafka" $kafka "topics" $topics "guard" $guard "http" (dict "host" "0.0.0.0" "port" 9464) "log" (dict "format" "json") -}}
{{- toYaml (mergeOverwrite (deepCopy $v.config) $chart) -}}
{{- end -}}

{{/* Before each installation and upgrade; what has done its work is taken away. */}}
{{- define "frontier.before" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Where everybody may connect to: names, and the brokers. */}}
{{- define "frontier.brokers" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports:
    {{- range .Values.networkPolicy.kafkaPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.kafkaPeers }}
  to: {{ toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "frontier.confined" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "frontier.pod" -}}
serviceAccountName: {{ include "frontier.serviceAccount" .root }}
{{ include "frontier.confined" .root }}
{{- with .values }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if .affinity }}
  {{- toYaml .affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ include "frontier.selector" $ | nindent 14 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "frontier.container" -}}
image: {{ include "frontier.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "frontier.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (not (empty .root.Values.guard.tls.secret)) -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ max 2 (div (int .seconds) 5) }}
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* The secrets of a component, as volumes and where they are mounted. */}}
{{- define "frontier.secrets" -}}
{{- $v := .root.Values -}}
{{- $found := list -}}
{{- if $v.kafka.tls.caSecret -}}
{{- $found = append $found (dict "name" "kafka-ca" "secret" $v.kafka.tls.caSecret "items" (dict $v.kafka.tls.caKey "ca.crt")) -}}
{{- end -}}
{{- if $v.kafka.tls.clientSecret -}}
{{- $found = append $found (dict "name" "kafka-client" "secret" $v.kafka.tls.clientSecret) -}}
{{- end -}}
{{- if $v.kafka.sasl.mechanism -}}
{{- $secret := $v.kafka.sasl.passwordSecret -}}
{{- if and (eq .component "fleet") $v.kafka.sasl.fleetPasswordSecret -}}{{- $secret = $v.kafka.sasl.fleetPasswordSecret -}}{{- end -}}
{{- if and (eq .component "topics") $v.kafka.sasl.setupPasswordSecret -}}{{- $secret = $v.kafka.sasl.setupPasswordSecret -}}{{- end -}}
{{- $found = append $found (dict "name" "kafka-password" "secret" $secret "items" (dict $v.kafka.sasl.passwordKey "password")) -}}
{{- end -}}
{{- if ne .component "topics" -}}
{{- /* The fleet's board asks the guard for the approvals that a session has now. */ -}}
{{- if and $v.guard.enabled $v.guard.tokenSecret -}}
{{- $found = append $found (dict "name" "guard-token" "secret" $v.guard.tokenSecret "items" (dict $v.guard.tokenKey "token")) -}}
{{- end -}}
{{- if and (eq .component "fleet") $v.fleet.tokenSecret -}}
{{- $found = append $found (dict "name" "fleet-token" "secret" $v.fleet.tokenSecret "items" (dict $v.fleet.tokenKey "token")) -}}
{{- end -}}
{{- if $v.guard.tls.secret -}}
{{- $found = append $found (dict "name" "tls" "secret" $v.guard.tls.secret) -}}
{{- end -}}
{{- if $v.guard.tls.clientCaSecret -}}
{{- $found = append $found (dict "name" "client-ca" "secret" $v.guard.tls.clientCaSecret) -}}
{{- end -}}
{{- end -}}
{{- dict "found" $found | toJson -}}
{{- end -}}

{{- define "frontier.mounts" -}}
- {name: config, mountPath: /etc/frontier/config, readOnly: true}
- {name: state, mountPath: /var/lib/sidecar}
{{- range (include "frontier.secrets" . | fromJson).found }}
- {name: {{ .name }}, mountPath: /etc/frontier/{{ .name }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "frontier.volumes" -}}
- name: config
  configMap: {name: {{ include "frontier.fullname" .root }}{{ if eq .component "topics" }}-topics{{ end }}}
- name: state
  emptyDir: {}
{{- range (include "frontier.secrets" . | fromJson).found }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    {{- with .items }}
    items:
      {{- range $key, $path := . }}
      - {key: {{ $key }}, path: {{ $path }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "frontier.env" -}}
- {name: SIDECAR_CONFIG, value: /etc/frontier/config/sidecar.yaml}
{{- with .root.Values.kafka.sasl }}
{{- if .mechanism }}
{{- $username := .username }}
{{- if eq $.component "fleet" }}{{- $username = default .username .fleetUsername }}{{- end }}
{{- if eq $.component "topics" }}{{- $username = default .username .setupUsername }}{{- end }}
- {name: SIDECAR_KAFKA__SASL_USERNAME, value: {{ $username | quote }}}
{{- end }}
{{- end }}
{{- end -}}
