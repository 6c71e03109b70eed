{{/* Names. */}}
{{- define "toolyard.name" -}}
{{- if contains "toolyard" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-toolyard" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels by which a part's pods are found: (list . "coordinator") */}}
{{- define "toolyard.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: toolyard
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "toolyard.labels" -}}
{{- $root := index . 0 -}}
{{ include "toolyard.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: toolyard
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* Metadata of a part's pods, with its podLabels and podAnnotations: (list . "coordinator" .Values.coordinators) */}}
{{- define "toolyard.podMetadata" -}}
{{- $part := index . 2 -}}
labels:
  {{- include "toolyard.labels" . | nindent 2 }}
  {{- with $part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $part.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Which nodes the pods may run on: the values of a part */}}
{{- define "toolyard.nodes" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How the pods are scheduled: the values of a part */}}
{{- define "toolyard.scheduling" -}}
{{- include "toolyard.nodes" . }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The name of a part's service account: (list . "coordinator" .Values.coordinators) */}}
{{- define "toolyard.serviceAccount" -}}
{{- ((index . 2).serviceAccount | default dict).name | default (printf "%s-%s" (include "toolyard.name" (index . 0)) (index . 1)) }}
{{- end }}

{{/* Entries that a value adds to a list of the chart, and fails for an entry that is already there:
     (list "coordinators.env" "name" chart's added) */}}
{{- define "toolyard.added" -}}
{{- $value := index . 0 }}{{ $key := index . 1 }}{{ $taken := list }}
{{- range fromYamlArray (index . 2) }}{{ $taken = append $taken (get . $key) }}{{ end }}
{{- range index . 3 }}
{{- $name := get . $key }}
{{- if has $name $taken }}{{ fail (printf "%s: %s is set by the chart, or given twice" $value $name) }}{{ end }}
{{- $taken = append $taken $name }}
{{- end }}
{{- with index . 3 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Arguments with those that a value adds. Fails for a flag that the chart sets, also by its variable:
     (list "coordinators.extraArgs" chart's added env) */}}
{{- define "toolyard.args" -}}
{{- $value := index . 0 }}{{ $taken := list "-o" "--output" }}
{{- range fromYamlArray (index . 3) }}
{{- $taken = append $taken (printf "--%s" (.name | trimPrefix "TOOLYARD_" | trimPrefix "OTEL_EXPORTER_" | lower | replace "_" "-")) }}
{{- end }}
{{- range index . 2 }}
{{- $flag := regexFind "^(--[a-z-]+|-[a-z])" . }}
{{- if has $flag $taken }}{{ fail (printf "%s: %s is set by the chart" $value $flag) }}{{ end }}
{{- end }}
{{- concat (index . 1) (index . 2) | toJson }}
{{- end }}

{{/* The part of a memory limit that a Go program may use before it collects harder: 85 %. Empty for a limit that is not in
     Mi or Gi. */}}
{{- define "toolyard.goMemLimit" -}}
{{- with include "toolyard.goMemMi" . }}{{ . }}MiB{{ end }}
{{- end }}

{{/* The same, in MiB. */}}
{{- define "toolyard.goMemMi" -}}
{{- $limit := toString . }}
{{- if regexMatch "^[0-9]+Gi$" $limit }}{{ div (mul (trimSuffix "Gi" $limit | int) 1024 85) 100 }}{{ end }}
{{- if regexMatch "^[0-9]+Mi$" $limit }}{{ div (mul (trimSuffix "Mi" $limit | int) 85) 100 }}{{ end }}
{{- end }}

{{- define "toolyard.logEnv" -}}
- {name: TOOLYARD_DURABILITY, value: {{ .Values.journal.durability }}}
- {name: TOOLYARD_LOG_MAX_BYTES, value: {{ .Values.journal.maxBytes | int64 | quote }}}
- {name: TOOLYARD_LOG_MAX_MESSAGES, value: {{ include "toolyard.logMessages" . | quote }}}
- {name: TOOLYARD_TAIL_PERCENT, value: {{ .Values.journal.tailPercent | quote }}}
{{- with .Values.journal.tail }}
- {name: TOOLYARD_TAIL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.journal.requestIdsFor }}
- {name: TOOLYARD_REQUEST_IDS_FOR, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "toolyard.logMessages" -}}
{{ .Values.journal.maxMessages | int64 | default (div (.Values.journal.maxBytes | int64) 512) }}
{{- end }}

{{/* MiB of memory that a server of NATS may use in this release. Empty without NATS in it, or without a limit in Mi or Gi.
     Fails for a limit that does not fit the log, as coordinator/src/nats/memory.rs calculates it. */}}
{{- define "toolyard.brokerMemoryMi" -}}
{{- if .Values.nats.deploy.enabled }}
{{- $limit := (((.Values.nats.deploy).resources).limits).memory | default "" }}
{{- with include "toolyard.goMemMi" $limit }}
{{- $ids := div (max (div ($.Values.journal.maxBytes | int64) 8) 2097152) 240 }}
{{- $messages := include "toolyard.logMessages" $ | int64 }}
{{- $carried := div (max (div ($.Values.journal.maxBytes | int64) 16) 2097152) 450 }}
{{- $needed := add 129 (div (add $messages $ids $carried) 1024) }}
{{- if lt (int64 .) $needed }}
{{- fail (printf "nats.deploy.resources: a log of %d messages needs up to %d MiB of each server's memory, and 85 %% of the limit %v is %s MiB: raise it to %dMi, or lower journal.maxMessages or journal.maxBytes" $messages $needed $limit . (add1 (div (mul $needed 100) 85))) }}
{{- end }}
{{- . }}
{{- end }}
{{- end }}
{{- end }}

{{/* (list name digest) */}}
{{- define "toolyard.pinned" -}}
{{- index . 0 }}{{ with index . 1 }}@{{ . }}{{ end }}
{{- end }}

{{/* (list . image) */}}
{{- define "toolyard.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $tag := $image.tag | default (ternary "" $root.Chart.AppVersion (not (empty $image.digest))) -}}
image: {{ include "toolyard.pinned" (list (trimSuffix ":" (printf "%s:%s" $image.repository $tag)) $image.digest) | quote }}
imagePullPolicy: {{ $image.pullPolicy | default "IfNotPresent" }}
{{- end }}

{{/* Fit for the pod security standard "restricted". Keys are readable by the group. */}}
{{- define "toolyard.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "toolyard.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "toolyard.natsUrl" -}}
{{- if .Values.nats.deploy.enabled -}}
{{- $root := . -}}
{{- $servers := list -}}
{{- range $index := until (int .Values.nats.deploy.replicas) -}}
{{- $servers = append $servers (printf "%s://%s-nats-%d.%s-nats:4222" (ternary "tls" "nats" (ne $root.Values.nats.caSecret "")) (include "toolyard.name" $root) $index (include "toolyard.name" $root)) -}}
{{- end -}}
{{- join "," $servers -}}
{{- else -}}
{{- .Values.nats.url -}}
{{- end -}}
{{- end }}

{{/* How a process gets to the broker: (list . "coordinator") */}}
{{- define "toolyard.natsEnv" -}}
{{- $root := index . 0 -}}
- {name: TOOLYARD_NATS_URL, value: {{ include "toolyard.natsUrl" $root | quote }}}
{{- if $root.Values.nats.keysSecret }}
- {name: TOOLYARD_NATS_NKEY, value: /etc/toolyard/nats/{{ index . 1 }}.nk}
{{- end }}
{{- if $root.Values.nats.caSecret }}
- {name: TOOLYARD_NATS_CA, value: /etc/toolyard/ca/ca.crt}
{{- end }}
{{- if $root.Values.log }}
- {name: TOOLYARD_LOG, value: {{ $root.Values.log | quote }}}
{{- end }}
{{- end }}

{{/* Where runs that have ended are kept. The key is that of the objects, if they are in a bucket. */}}
{{- define "toolyard.historyEnv" -}}
{{- $history := .Values.history -}}
{{- if $history.url }}
- {name: TOOLYARD_HISTORY, value: {{ $history.url | quote }}}
- {name: TOOLYARD_HISTORY_RETENTION, value: {{ $history.retention | quote }}}
{{- with $history.indexRetention }}
- {name: TOOLYARD_INDEX_RETENTION, value: {{ . | quote }}}
{{- end }}
{{- with $history.endpoint }}
- {name: TOOLYARD_HISTORY_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with $history.region }}
- {name: TOOLYARD_HISTORY_REGION, value: {{ . | quote }}}
{{- end }}
{{- if $history.allowHttp }}
- {name: TOOLYARD_HISTORY_ALLOW_HTTP, value: "true"}
{{- end }}
{{- with $history.secret }}
{{- $secret := . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ . }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where objects lie, and as whom: (list . secret) */}}
{{- define "toolyard.objectsEnv" -}}
{{- $objects := (index . 0).Values.objects -}}
{{- if $objects.url }}
- {name: TOOLYARD_OBJECTS, value: {{ $objects.url | quote }}}
{{- with $objects.endpoint }}
- {name: TOOLYARD_OBJECTS_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- with $objects.region }}
- {name: TOOLYARD_OBJECTS_REGION, value: {{ . | quote }}}
{{- end }}
{{- if $objects.allowHttp }}
- {name: TOOLYARD_OBJECTS_ALLOW_HTTP, value: "true"}
{{- end }}
{{- with index . 1 }}
{{- $secret := . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ . }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "toolyard.telemetryEnv" -}}
{{- with .Values.telemetry.otlpEndpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ $.Values.telemetry.sampling | quote }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ printf "k8s.namespace.name=%s,k8s.pod.name=$(POD_NAME)" $.Release.Namespace | quote }}}
{{- end }}
{{- end }}

{{- define "toolyard.natsMounts" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.nats.keysSecret }}
- {name: nats-key, mountPath: /etc/toolyard/nats, readOnly: true}
{{- end }}
{{- if $root.Values.nats.caSecret }}
- {name: nats-ca, mountPath: /etc/toolyard/ca, readOnly: true}
{{- end }}
{{- end }}

{{/* Of all keys a pod sees its own. */}}
{{- define "toolyard.natsVolumes" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.nats.keysSecret }}
- name: nats-key
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: {{ index $ 1 }}.nk, path: {{ index $ 1 }}.nk}]
{{- end }}
{{- with $root.Values.nats.caSecret }}
- name: nats-ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}

{{/* The files of the API, hooks and webhooks. The whole folder is mounted, so that changes of the secret arrive. */}}
{{- define "toolyard.doorEnv" -}}
{{- if not .Values.door.callersSecret.name }}
- {name: TOOLYARD_OPEN_TO_ALL, value: "true"}
{{- end }}
{{- with .Values.door.tlsSecret }}
- {name: TOOLYARD_TLS_CERT, value: /etc/toolyard/tls/tls.crt}
- {name: TOOLYARD_TLS_KEY, value: /etc/toolyard/tls/tls.key}
{{- end }}
{{- with .Values.door.clientCaSecret }}
{{- if .name }}
- {name: TOOLYARD_TLS_CLIENT_CA, value: {{ printf "/etc/toolyard/client-ca/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- with .Values.door.callersSecret }}
{{- if .name }}
- {name: TOOLYARD_AUTH, value: {{ printf "/etc/toolyard/callers/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- with .Values.door.poolsKey }}
- {name: TOOLYARD_POOLS, value: {{ printf "/etc/toolyard/callers/%s" . | quote }}}
{{- end }}
{{- end }}

{{- define "toolyard.doorMounts" -}}
{{- if .Values.door.tlsSecret }}
- {name: door-tls, mountPath: /etc/toolyard/tls, readOnly: true}
{{- end }}
{{- if .Values.door.clientCaSecret.name }}
- {name: door-client-ca, mountPath: /etc/toolyard/client-ca, readOnly: true}
{{- end }}
{{- if .Values.door.callersSecret.name }}
- {name: door-callers, mountPath: /etc/toolyard/callers, readOnly: true}
{{- end }}
{{- end }}

{{- define "toolyard.doorVolumes" -}}
{{- with .Values.door.tlsSecret }}
- name: door-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.door.clientCaSecret.name }}
- name: door-client-ca
  secret: {secretName: {{ . }}}
{{- end }}
{{- with .Values.door.callersSecret.name }}
- name: door-callers
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "toolyard.hooksEnv" -}}
{{- with .Values.hooksSecret }}
{{- if .name }}
- {name: TOOLYARD_HOOKS, value: {{ printf "/etc/toolyard/hooks/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "toolyard.hooksMounts" -}}
{{- if .Values.hooksSecret.name }}
- {name: hooks, mountPath: /etc/toolyard/hooks, readOnly: true}
{{- end }}
{{- end }}

{{- define "toolyard.hooksVolumes" -}}
{{- with .Values.hooksSecret.name }}
- name: hooks
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "toolyard.webhooksEnv" -}}
{{- with .Values.webhooksSecret }}
{{- if .name }}
- {name: TOOLYARD_WEBHOOKS, value: {{ printf "/etc/toolyard/webhooks/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "toolyard.webhooksMounts" -}}
{{- if .Values.webhooksSecret.name }}
- {name: webhooks, mountPath: /etc/toolyard/webhooks, readOnly: true}
{{- end }}
{{- end }}

{{- define "toolyard.webhooksVolumes" -}}
{{- with .Values.webhooksSecret.name }}
- name: webhooks
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* The address of the index and the authorities of its certificate. */}}
{{- define "toolyard.redisEnv" -}}
{{- if .Values.redis.deploy.enabled }}
- {name: TOOLYARD_REDIS_URL, value: "redis://{{ include "toolyard.name" . }}-valkey:6379"}
{{- else if .Values.redis.urlSecret.name }}
- name: TOOLYARD_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.redis.urlSecret.name }}, key: {{ .Values.redis.urlSecret.key }}}
{{- end }}
{{- with .Values.redis.caSecret }}
{{- if .name }}
- {name: TOOLYARD_REDIS_CA, value: {{ printf "/etc/toolyard/redis-ca/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "toolyard.redisMounts" -}}
{{- if .Values.redis.caSecret.name }}
- {name: redis-ca, mountPath: /etc/toolyard/redis-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "toolyard.redisVolumes" -}}
{{- with .Values.redis.caSecret }}
{{- if .name }}
- name: redis-ca
  secret:
    secretName: {{ .name }}
    items: [{key: {{ .key }}, path: {{ .key }}}]
{{- end }}
{{- end }}
{{- end }}

{{/* The protocol of the coordinators, and its name for load balancers and gateways. */}}
{{- define "toolyard.scheme" -}}
{{- if .Values.door.tlsSecret }}https{{ else }}http{{ end }}
{{- end }}

{{- define "toolyard.appProtocol" -}}
{{- if .Values.door.tlsSecret }}https{{ else }}kubernetes.io/h2c{{ end }}
{{- end }}

{{/* One pod a node and a zone, where that is possible. */}}
{{- define "toolyard.spread" -}}
{{- $labels := include "toolyard.selector" . -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $labels | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "toolyard.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The names of the coordinators' two services and door.hostNames, with commas between them. */}}
{{- define "toolyard.hostNames" -}}
{{- $names := list -}}
{{- range $service := list (include "toolyard.name" .) (printf "%s-admin" (include "toolyard.name" .)) -}}
{{- $names = append $names $service -}}
{{- range $end := list "" ".svc" ".svc.cluster.local" -}}
{{- $names = append $names (printf "%s.%s%s" $service $.Release.Namespace $end) -}}
{{- end -}}
{{- end -}}
{{- join "," (concat $names .Values.door.hostNames) -}}
{{- end -}}

{{/* All variables of a coordinator. */}}
{{- define "toolyard.coordinatorEnv" -}}
{{- include "toolyard.natsEnv" (list . "coordinator") }}
{{- include "toolyard.telemetryEnv" . }}
{{- include "toolyard.objectsEnv" (list . .Values.objects.secret) }}
{{- include "toolyard.historyEnv" . }}
{{- include "toolyard.doorEnv" . }}
{{- include "toolyard.hooksEnv" . }}
{{- include "toolyard.webhooksEnv" . }}
{{- include "toolyard.redisEnv" . }}
- {name: TOOLYARD_LISTEN, value: "0.0.0.0:7420"}
- {name: TOOLYARD_ADMIN_LISTEN, value: "0.0.0.0:7421"}
# Host names that requests over HTTP may use: of clients without callers, and of autoscalers at the admin port.
- {name: TOOLYARD_HOST_NAMES, value: {{ include "toolyard.hostNames" . | quote }}}
- {name: TOOLYARD_CONNECTIONS_MAX, value: {{ .Values.coordinators.connectionsMax | int64 | quote }}}
{{- if .Values.coordinators.attachedOnly }}
- {name: TOOLYARD_ATTACHED_ONLY, value: "true"}
{{- end }}
{{- with include "toolyard.onDemand" . }}
- {name: TOOLYARD_ON_DEMAND, value: {{ . | quote }}}
{{- end }}
- {name: TOOLYARD_ERASE_AFTER, value: {{ .Values.coordinators.eraseAfterSeconds | int64 | quote }}}
{{ include "toolyard.logEnv" . }}
{{- with include "toolyard.brokerMemoryMi" . }}
- {name: TOOLYARD_BROKER_MEMORY, value: {{ mul (int64 .) 1048576 | quote }}}
{{- end }}
{{- if not .Values.objects.url }}
- {name: TOOLYARD_OBJECTS_MAX_BYTES, value: {{ .Values.objects.maxBytes | int64 | quote }}}
{{- end }}
{{- end }}

{{/* The pools that KEDA scales to zero, with commas between them. */}}
{{- define "toolyard.onDemand" -}}
{{- $names := list -}}
{{- range .Values.pools -}}
{{- $keda := .keda | default dict -}}
{{- if and $keda.enabled (eq (include "toolyard.kedaMin" $keda) "0") }}{{ $names = append $names .name }}{{ end -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* minReplicas of a pool: its keda */}}
{{- define "toolyard.kedaMin" -}}
{{- if hasKey . "minReplicas" }}{{ int .minReplicas }}{{ else }}1{{ end }}
{{- end }}

{{/* The API of the coordinators for a pool, its agents and its interceptors: (list . pool) */}}
{{- define "toolyard.poolEnv" -}}
{{- $root := index . 0 -}}{{- $pool := index . 1 -}}
{{- $api := $pool.api | default dict -}}{{- $agents := $pool.agents | default dict -}}{{- $interceptors := $pool.interceptors | default dict -}}
{{- if $api.enabled }}
- {name: TOOLYARD_API_URL, value: {{ printf "%s://%s.%s.svc:%d" (include "toolyard.scheme" $root) (include "toolyard.name" $root) $root.Release.Namespace (int $root.Values.coordinators.service.port) | quote }}}
{{- with $api.keySecret }}
{{- if .name }}
- {name: TOOLYARD_API_KEY_FILE, value: {{ printf "/etc/toolyard/api/%s" (.key | default "api.key") | quote }}}
{{- end }}
{{- end }}
{{- with $api.caSecret }}
{{- if .name }}
- {name: TOOLYARD_API_CA, value: {{ printf "/etc/toolyard/api-ca/%s" (.key | default "ca.crt") | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- if $agents.configMap }}
- {name: TOOLYARD_AGENTS, value: {{ printf "/etc/toolyard/agents/%s" ($agents.key | default "agents.toml") | quote }}}
{{- end }}
{{- if $interceptors.configMap }}
- {name: TOOLYARD_INTERCEPTORS, value: {{ printf "/etc/toolyard/interceptors/%s" ($interceptors.key | default "interceptors.toml") | quote }}}
{{- end }}
{{- end }}

{{/* The files of a pool: the pool. A line for each volume: its name and folder, what holds it, and the key of it that alone
     is mounted, because the secret with the authorities may hold the API's private key too. */}}
{{- define "toolyard.poolFiles" -}}
{{- $api := .api | default dict }}
{{- with and $api.enabled ($api.keySecret | default dict).name }}
api-key api secret {{ . }} {{ $api.keySecret.key | default "api.key" }}
{{- end }}
{{- with and $api.enabled ($api.caSecret | default dict).name }}
api-ca api-ca secret {{ . }} {{ $api.caSecret.key | default "ca.crt" }}
{{- end }}
{{- with (.agents | default dict).configMap }}
agents agents configMap {{ . }}
{{- end }}
{{- with and (.agents | default dict).configMap .agents.keysSecret }}
agent-keys agent-keys secret {{ . }}
{{- end }}
{{- with (.interceptors | default dict).configMap }}
interceptors interceptors configMap {{ . }}
{{- end }}
{{- end }}

{{- define "toolyard.poolMounts" -}}
{{- range include "toolyard.poolFiles" . | trim | splitList "\n" }}
{{- with splitList " " . }}{{ if gt (len .) 3 }}
- {name: {{ index . 0 }}, mountPath: /etc/toolyard/{{ index . 1 }}, readOnly: true}
{{- end }}{{ end }}
{{- end }}
{{- end }}

{{- define "toolyard.poolVolumes" -}}
{{- range include "toolyard.poolFiles" . | trim | splitList "\n" }}
{{- with splitList " " . }}{{ if gt (len .) 3 }}
- name: {{ index . 0 }}
  {{- if eq (index . 2) "secret" }}
  secret:
    secretName: {{ index . 3 }}
    defaultMode: 0440
    {{- if gt (len .) 4 }}
    items: [{key: {{ index . 4 }}, path: {{ index . 4 }}}]
    {{- end }}
  {{- else }}
  configMap: {name: {{ index . 3 }}}
  {{- end }}
{{- end }}{{ end }}
{{- end }}
{{- end }}

{{/* All variables of a worker: (list . pool) */}}
{{- define "toolyard.workerEnv" -}}
{{- $root := index . 0 -}}{{- $pool := index . 1 -}}
{{- include "toolyard.natsEnv" (list $root (printf "pool-%s" $pool.name)) }}
{{- include "toolyard.telemetryEnv" $root }}
{{- include "toolyard.objectsEnv" (list $root $pool.objectsSecret) }}
{{- if $pool.hooks }}
{{- include "toolyard.hooksEnv" $root }}
{{- end }}
{{- include "toolyard.poolEnv" . }}
{{- if include "toolyard.hasAdmin" $pool }}
- {name: TOOLYARD_ADMIN_LISTEN, value: "0.0.0.0:7421"}
{{- end }}
- {name: TOOLYARD_POOL, value: {{ $pool.name | quote }}}
- {name: TOOLYARD_SLOTS, value: {{ $pool.slots | default 16 | int | quote }}}
- {name: TOOLYARD_DRAIN, value: {{ include "toolyard.drain" $pool | quote }}}
- {name: TOOLYARD_ROOT, value: /workspace}
{{- with $pool.sandbox }}
{{- if ne (.level | default "auto") "auto" }}
- {name: TOOLYARD_SANDBOX, value: {{ .level }}}
{{- end }}
{{- with .folders }}
- {name: TOOLYARD_WORKSPACE, value: {{ . }}}
{{- end }}
{{- if .network }}
- {name: TOOLYARD_NETWORK, value: "true"}
{{- end }}
{{- end }}
- {name: HOME, value: /tmp}
{{- end }}

{{/* Whether the workers of a pool serve the admin port: the pool. Empty: they do not. */}}
{{- define "toolyard.hasAdmin" -}}
{{- if or (not (hasKey . "admin")) .admin }}true{{ end }}
{{- end }}

{{/* drainSeconds of a pool: the pool */}}
{{- define "toolyard.drain" -}}
{{- if hasKey . "drainSeconds" }}{{ int .drainSeconds }}{{ else }}120{{ end }}
{{- end }}
