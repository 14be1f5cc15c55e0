"""Keys that people bring along from other agent files, and what to write here instead."""

from __future__ import annotations

from collections.abc import Mapping

_PROMPT = "write the text into a Markdown file and name it under prompts.system"
_KEY_IS_ID = "the key above is the id; remove it"
_TABLE = "the import path belongs into plugins/plugins.toml"
_AUTH = "authentication is a hook: return headers from one at before_mcp_request"
_NO_CONFIG = (
    "there is no config: key. YAML registers a hook and does not configure it: the hook reads secrets from the "
    "environment and values of the request from event.run_context, in Python"
)
_KEY_ENV = "keys never stand in YAML; set the environment variable that the provider reads"


def _same(text: str, keys: str) -> dict[str, str]:
    return dict.fromkeys(keys.split(), text)


FOREIGN: Mapping[str, Mapping[str, str]] = {
    "top": {
        **_same("write it as system.name", "name title id"),
        **_same("write it as system.description", "description summary"),
        **_same("the file has no version of its own; remove it", "version apiVersion schema_version kind"),
        **_same("use agents: a mapping of id to agent", "agent nodes crew workers roles personas"),
        **_same("use orchestrators: a mapping of id to orchestrator", "orchestrator router routers supervisor"),
        **_same("use graph: nested ids with one root", "workflow flow edges topology routes tree hierarchy"),
        **_same("use defaults.model, or model on each node", "model models llm llms provider"),
        **_same("use mcps: a mapping of id to server", "mcp mcp_servers mcpServers servers"),
        **_same("use tools: a mapping of id to description", "functions skills actions toolkits"),
        **_same("use resolvers: a mapping of id to scope", "variables vars context inputs placeholders"),
        **_same("use hooks: an event with a list of entries", "hook middleware callbacks guardrails events"),
        **_same("use execution", "limits settings runtime config options max_iterations max_turns"),
        **_same("secrets and settings come from the environment; remove it", "env environment secrets"),
        **_same("prompts stand on each node: agents.ID.prompts.system", "prompts instructions system_prompt"),
        **_same("use plugins.import_roots", "import_roots imports paths"),
        **_same("a system answers messages and has no list of tasks; describe the work in prompts", "tasks steps"),
    },
    "system": {
        **_same("use name", "title id"),
        **_same("use description", "summary desc purpose"),
        **_same("the file has no version of its own; remove it", "version"),
        **_same("use defaults.model at the top level", "model llm"),
    },
    "defaults": {
        **_same("use model", "llm models"),
        **_same(
            "write it one level deeper, under defaults.model",
            "provider name temperature max_tokens top_p region base_url fallback",
        ),
        **_same("use execution at the top level", "execution limits max_iterations"),
    },
    "node": {
        **_same(_PROMPT, "instructions system_prompt prompt backstory goal role persona system system_message"),
        **_same("use prompts.user", "user_prompt template"),
        **_same("use model, a mapping with provider and name", "llm model_name models engine"),
        **_same(
            "write it one level deeper, under model",
            "provider temperature max_tokens top_p region base_url fallback fallbacks",
        ),
        **_same("use mcps: a list of server ids", "mcp mcp_servers mcpServers servers"),
        **_same("use tools: a list of tool ids", "functions skills tool toolkits actions"),
        **_same(
            "who stands under whom is said in graph",
            "children sub_agents subagents agents handoffs delegates routes next parent",
        ),
        **_same(
            "use auto: false to ask before every call, or approval: required on a tool",
            "approval approvals auto_approve human_in_the_loop require_approval human_input confirm",
        ),
        **_same(
            "use protected: true and AccessResolver in plugins/access.py",
            "private restricted auth access permissions secured requires_auth",
        ),
        **_same("use name", "title label display_name"),
        **_same("use description", "summary desc when_to_use instructions_for_router"),
        **_same("use resolvers: a list of resolver ids", "variables vars context inputs placeholders"),
        **_same(
            "hooks stand at the top level; limit one with agents: [ID]",
            "hooks callbacks middleware guardrails",
        ),
        **_same(
            "limits stand under execution at the top level",
            "max_iterations max_turns max_steps max_tool_calls timeout timeout_s limits execution",
        ),
        **_same(_KEY_IS_ID, "id key"),
        **_same("whether a node routes is said by the section it stands in, agents or orchestrators", "type kind"),
    },
    "orchestrator": {
        **_same("an orchestrator routes; give the tools to an agent below it", "tools mcps"),
        **_same("auto belongs to agents; an orchestrator calls no tools of its own", "auto"),
    },
    "prompts": {
        **_same("use system", "instructions developer assistant main prompt"),
        **_same("use user", "human input template message"),
        **_same("use orchestrator", "router routing supervisor"),
    },
    "agent_prompts": {**_same("an agent's main prompt is prompts.system", "orchestrator agent")},
    "model": {
        **_same("use name", "model model_name id deployment deployment_name engine"),
        **_same("use provider", "type vendor api platform"),
        **_same(_KEY_ENV, "api_key apiKey key token api_token secret credentials api_key_env"),
        **_same("use max_tokens", "max_output_tokens maxTokens max_completion_tokens max_length"),
        **_same("use top_p", "topP p"),
        **_same("use base_url", "endpoint api_base url host baseURL baseUrl api_url"),
        **_same("use fallback: one model, or a list in order", "fallbacks backup backups"),
        **_same("use region", "location aws_region zone"),
        **_same("a limit of time stands under execution.timeout_s", "timeout timeout_s"),
        **_same("retries are the engine's own; remove it", "retries max_retries"),
    },
    "fallback": {**_same("fallbacks have one level: list them in order under the model", "fallback fallbacks")},
    "tool": {
        **_same("use description", "desc summary help prompt"),
        **_same(
            "use approval: required",
            "requires_approval require_approval approve confirm human_approval needs_approval auto",
        ),
        **_same(
            f"{_TABLE} under [tools]",
            "module function handler path ref callable python entrypoint class plugin import",
        ),
        **_same(
            "parameters come from the typed Python function; remove it",
            "parameters args arguments schema input_schema inputs",
        ),
        **_same(_KEY_IS_ID, "name id"),
        **_same("an MCP server stands under mcps", "url command mcp server"),
    },
    "mcp": {
        **_same("url means streamable HTTP and command means stdio; remove it", "transport type protocol"),
        **_same("use url", "endpoint uri server_url base_url serverUrl address host"),
        **_same(_AUTH, "headers auth authorization token api_key bearer credentials oauth"),
        **_same("use env", "environment env_vars environ"),
        **_same("use pass_env: a list of names", "inherit_env env_passthrough env_from passenv"),
        **_same("use command", "cmd executable binary program"),
        **_same("use args", "arguments argv params"),
        **_same("use cwd", "working_dir workdir working_directory dir"),
        **_same("use required: false", "optional"),
        **_same("use discover: first_use", "lazy on_demand"),
        **_same("remove the server, or its id from the agents", "enabled disabled"),
        **_same("use tool_tags", "tags tools allowed_tools include_tools tool_filter toolsets"),
        **_same("use timeout, in seconds", "timeout_s timeout_seconds timeout_ms request_timeout"),
        **_same(_KEY_IS_ID, "name id"),
        **_same("a server needs no description; remove it", "description"),
    },
    "transport": {
        **_same("use header_name", "header key"),
        **_same("use param_name", "param query_param parameter"),
    },
    "resolver": {
        **_same("use scope: shared or agent", "type kind level visibility"),
        **_same("use agents", "agent nodes node"),
        **_same(f"{_TABLE} under [resolvers]", "ref class module function handler plugin path"),
        **_same("a value comes from a method in plugins/resolvers; remove it", "value default env"),
        **_same(_KEY_IS_ID, "name id"),
    },
    "hook": {
        **_same(_NO_CONFIG, "config configuration options params parameters settings with kwargs"),
        **_same("use failure_policy", "on_error on_failure policy fail_policy failurePolicy failure fail_open"),
        **_same("use plugin and method, or ref: module:attribute", "function handler callable class module path"),
        **_same("use priority (lower runs first)", "order position weight"),
        **_same("use sequential: false", "async parallel concurrent"),
        **_same("use timeout, in seconds", "timeout_s timeout_ms timeout_seconds"),
        **_same("use matcher", "tool tools pattern match matchers filter target"),
        **_same("use agents", "agent nodes"),
        **_same("use servers", "server mcps mcp"),
        **_same("use command (one shell line) or args (a list)", "script cmd shell run exec program"),
        **_same("use url", "webhook endpoint uri http"),
        **_same("use name", "id title label"),
        **_same("remove the entry to switch it off", "enabled disabled"),
        **_same("conditions are Python: register the hook with when=", "when if condition"),
        **_same("register the webhook in Python, where it can be given", "secret_env header_env headers secret"),
        **_same("register the hook in Python, where it can be given", "inline description"),
        **_same("use env", "environment env_vars"),
        **_same("the key above the list is the event; remove it", "event events point hook_point on"),
        **_same("use observe", "observer read_only"),
        **_same("use shadow", "dry_run audit_only"),
        **_same("remove it; type follows from plugin, ref, command or url", "type kind"),
        **_same("a command hook runs in the folder of the file; remove it", "cwd working_dir"),
    },
    "plugins": {
        **_same("use import_roots: a list of folders", "paths roots path folders sys_path root import_root"),
        **_same(f"{_TABLE} under [hooks.plugins]", "hooks plugins modules"),
    },
    "execution": {
        **_same(
            "use max_iterations",
            "max_turns max_steps max_model_calls recursion_limit max_loops iterations max_rounds",
        ),
        **_same("use timeout_s, in seconds", "timeout timeout_seconds max_time time_limit deadline"),
        **_same("use max_tokens", "token_budget max_total_tokens tokens token_limit"),
        **_same("use max_tool_calls", "max_calls tool_calls max_tools tool_call_limit"),
        **_same("use max_child_agent_calls", "max_child_calls max_agent_calls max_delegations max_handoffs"),
        **_same("use allow_duplicate_tool_calls", "allow_duplicates dedupe deduplicate"),
        **_same(
            "it is not set in the file; give Limits to the engine in Python",
            "approval_s approval_timeout max_parallel_tools parallel concurrency retries max_retries",
        ),
    },
}
"""Kind of block -> foreign key -> advice."""

VALUES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("hook", "failure_policy"): {
        **_same("warn", "ignore continue log skip open fail_open none soft allow"),
        **_same("fail", "raise abort error strict closed fail_closed stop hard"),
        **_same("deny", "block refuse reject"),
    },
    ("tool", "approval"): {**_same("required", "true True always yes require manual human ask")},
    ("mcp", "discover"): {
        **_same("first_use", "lazy on_demand late runtime"),
        **_same("build", "eager startup start always"),
    },
    ("resolver", "scope"): {
        **_same("shared", "global system all common"),
        **_same("agent", "local node private"),
    },
    ("model", "provider"): {
        **_same("openai", "gpt chatgpt openai-compatible"),
        **_same("anthropic", "claude"),
        **_same("google", "vertex vertexai palm"),
        **_same("azure", "azure-openai azure_openai"),
        **_same("bedrock", "aws amazon aws-bedrock"),
        **_same("offline", "local none dummy"),
        **_same("scripted", "mock fake test"),
        **_same("ollama", "llama llama.cpp"),
    },
}
"""(Kind of block, key) -> foreign value -> the value to use."""


def advice_for(kind: str, key: str) -> str | None:
    """What to write instead of a foreign key in a block of this kind, or None."""
    for name in {"orchestrator": ("orchestrator", "node"), "agent": ("node",), "fallback": ("fallback", "model")}.get(
        kind, {"agent_prompts": ("agent_prompts", "prompts")}.get(kind, (kind,))
    ):
        found = FOREIGN.get(name, {}).get(key)
        if found is not None:
            return found
    return None
