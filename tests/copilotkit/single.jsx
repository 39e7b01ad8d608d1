// CopilotKit 1.68 by its own <CopilotKit>, which speaks the single-route transport unless it is told otherwise.
import { CopilotKit } from "@copilotkit/react-core/v2";

export * from "@copilotkit/react-core/v2";
export const CopilotKitProvider = ({ agentId, ...props }) => <CopilotKit agent={agentId} {...props} />;
