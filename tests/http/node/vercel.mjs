// The Vercel AI SDK against a gateway: a text, a stream and a tool call, printed as JSON.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, streamText, tool } from 'ai';

const [baseURL, apiKey] = process.argv.slice(2);
const model = createOpenAICompatible({ name: 'outrider', baseURL, apiKey })('any');
const wish = { model, prompt: 'Hi', maxRetries: 0 };

const whole = await generateText(wish);
let streamed = '';
for await (const part of streamText(wish).textStream) streamed += part;

const weather = tool({
  description: 'Reports the weather.',
  inputSchema: jsonSchema({ type: 'object', properties: { city: { type: 'string' } } }),
});
const calling = streamText({ ...wish, tools: { weather }, toolChoice: 'required' });
const calls = (await calling.toolCalls).map((call) => [call.toolName, call.input]);
console.log(JSON.stringify([whole.text, streamed, calls, await calling.finishReason]));
